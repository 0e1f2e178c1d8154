"""The output phrases of each response, compiled once per content of its tenant's policy."""

from collections import OrderedDict
from typing import Protocol

import structlog

from agents.safety.phrases import PhraseSet
from schemas.generated import Opened
from schemas.policy import OutputPolicy
from streams.directory import TenantDirectory

COMPILED_REMEMBERED = 4_096
_log = structlog.get_logger()


class KeptPolicies(Protocol):
    def output_deny(self, tenant_id: str, digest: str) -> list[str] | None:
        """The phrases of that digest; None when nobody kept them. Raises LogError."""


class ResponsePhrases:
    """Compiled phrases by response: those that `Opened` names, so that a rebuild after an edit decides alike.

    A response that names none (admission of an older version) gets what the directory says now.
    """

    def __init__(self, kept: KeptPolicies, directory: TenantDirectory) -> None:
        self._kept = kept
        self._directory = directory
        self._compiled: OrderedDict[str, PhraseSet] = OrderedDict()

    def __call__(self, opened: Opened) -> PhraseSet | None:
        """None for a tenant, or a policy, that nobody knows. Raises LogError."""
        tenant_id, digest = opened.scope.tenant_id, opened.output_policy
        output_deny: list[str] | None = None
        if not digest:
            tenant = self._directory.tenant(tenant_id)
            if tenant is None:
                return None
            output_deny = tenant.policy.output_deny
            digest = OutputPolicy.of(tenant_id, output_deny).digest
        phrases = self._compiled.get(digest)
        if phrases is None:
            if output_deny is None:
                output_deny = self._kept.output_deny(tenant_id, digest)
            if output_deny is None:
                _log.error("policy_missing", tenant_id=tenant_id, digest=digest)
                return None
            phrases = PhraseSet(output_deny)
            if phrases.ignored:
                _log.error("phrases_ignored", tenant_id=tenant_id, count=len(phrases.ignored), why="no letter or digit")
            self._compiled[digest] = phrases
            if len(self._compiled) > COMPILED_REMEMBERED:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(digest)
        return phrases
