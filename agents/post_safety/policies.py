"""What the text of each response is held against, compiled once per content of its tenant's policy."""

from collections import OrderedDict
from typing import NamedTuple, Protocol

import structlog

from agents.safety.output_policies import output_policy_of
from agents.safety.phrases import PhraseSet
from schemas.generated import Opened
from schemas.policy import OutputMode, OutputPolicy
from streams.directory import TenantDirectory

COMPILED_REMEMBERED = 4_096
_log = structlog.get_logger()


class KeptPolicies(Protocol):
    def policy(self, tenant_id: str, digest: str) -> OutputPolicy | None:
        """That of the digest; None when nobody kept it. Raises LogError."""


class Rules(NamedTuple):
    """What the text of a response is held against, and how."""

    phrases: PhraseSet
    mode: OutputMode


class ResponseRules:
    """Compiled by response: those that `Opened` names, so that a rebuild after an edit decides alike.

    A response that names none (admission of an older version) gets what the directory says now.
    """

    def __init__(self, kept: KeptPolicies, directory: TenantDirectory) -> None:
        self._kept = kept
        self._directory = directory
        self._compiled: OrderedDict[str, Rules] = OrderedDict()

    def __call__(self, opened: Opened) -> Rules | None:
        """None for a tenant, or a policy, that nobody knows. Raises LogError."""
        tenant_id, digest = opened.scope.tenant_id, opened.output_policy
        policy: OutputPolicy | None = None
        if not digest:
            tenant = self._directory.tenant(tenant_id)
            if tenant is None:
                return None
            policy = output_policy_of(tenant)
            digest = policy.digest
        rules = self._compiled.get(digest)
        if rules is None:
            policy = policy or self._kept.policy(tenant_id, digest)
            if policy is None:
                _log.error("policy_missing", tenant_id=tenant_id, digest=digest)
                return None
            phrases = PhraseSet(policy.output_deny)
            if phrases.ignored:
                _log.error("phrases_ignored", tenant_id=tenant_id, count=len(phrases.ignored), why="no letter or digit")
            rules = self._compiled[digest] = Rules(phrases, policy.mode)
            if len(self._compiled) > COMPILED_REMEMBERED:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(digest)
        return rules
