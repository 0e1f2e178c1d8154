"""The output phrases of each tenant, compiled once per content of its policy."""

import structlog

from agents.phrases import PhraseSet
from streams.directory import TenantDirectory

_log = structlog.get_logger()


class TenantPhrases:
    """Compiled phrases by tenant; follows the directory. A response keeps those that it was opened with."""

    def __init__(self, directory: TenantDirectory) -> None:
        self._directory = directory
        self._compiled: dict[str, tuple[list[str], PhraseSet]] = {}

    def __call__(self, tenant_id: str) -> PhraseSet | None:
        """None for a tenant that the directory does not know."""
        tenant = self._directory.tenant(tenant_id)
        if tenant is None:
            self._compiled.pop(tenant_id, None)
            return None
        deny = tenant.policy.output_deny
        known = self._compiled.get(tenant_id)
        # The directory keeps its objects until the file changes.
        if known is not None and (known[0] is deny or known[0] == deny):
            return known[1]
        phrases = PhraseSet(deny)
        if phrases.ignored:
            _log.error("phrases_ignored", tenant_id=tenant_id, count=len(phrases.ignored), why="no letter or digit")
        self._compiled[tenant_id] = (deny, phrases)
        return phrases
