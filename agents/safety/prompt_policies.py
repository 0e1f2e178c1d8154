"""The phrases that a tenant does not take in prompts, ready to be looked for."""

from agents.safety.phrases import PhraseSet
from streams.directory import SafetyPolicy, Tenant


class PromptPolicies:
    """Compiled deny phrases per tenant; compiled again when the phrases have changed."""

    def __init__(self) -> None:
        self._compiled: dict[str, tuple[SafetyPolicy, PhraseSet]] = {}

    def of(self, tenant: Tenant) -> PhraseSet:
        wanted = tenant.policy
        policy, phrases = self._compiled.get(tenant.tenant_id, (None, None))
        if policy is wanted and phrases is not None:
            return phrases
        # Every edit of the settings makes all policies anew, and most say what they said before.
        if phrases is None or policy is None or _phrases(policy) != _phrases(wanted):
            phrases = PhraseSet(wanted.prompt_deny, wanted.prompt_allow)
        self._compiled[tenant.tenant_id] = (wanted, phrases)
        return phrases


def _phrases(policy: SafetyPolicy) -> tuple[list[str], list[str]]:
    return policy.prompt_deny, policy.prompt_allow
