"""Who watches what: each viewer of the hub, and the coroutine that follows it."""

from collections.abc import Callable

from schemas.base import Scope
from streams.clocks import monotonic_ms, now_ms
from streams.gateway.closing import CloseReason
from streams.gateway.fan_out.delivery import Follower
from streams.gateway.fan_out.hub import Hub
from streams.gateway.fan_out.stream import Viewer
from streams.gateway.history.replay import Replay
from streams.gateway.history.store import History
from streams.gateway.service.keys import Principal


class Viewing:
    def __init__(self, hub: Hub, history: History) -> None:
        self._hub = hub
        self._history = history
        self._watching: dict[Viewer, tuple[Follower, Principal]] = {}

    def follow(
        self, principal: Principal, response_id: str, partition: int, scope: Scope, after: int, *, stays: bool = True,
        replay: Replay | None = None,
    ) -> Follower:  # fmt: skip
        """Release it. One that does not stay keeps nothing alive. `replay`: what history has told beyond `after`."""
        follower = Follower(self._history, scope.tenant_id)
        viewer = self._hub.attach(response_id, partition, scope, after, follower.wake, monotonic_ms(), stays=stays)
        follower.watch(viewer, replay)
        self._watching[viewer] = follower, principal
        return follower

    def show(self, tenant_id: str, replay: Replay) -> Follower:
        """Of a response that has ended: nobody need watch it."""
        follower = Follower(self._history, tenant_id)
        follower.show(replay)
        return follower

    def release(self, follower: Follower) -> None:
        """The viewer is gone. Idempotent."""
        follower.close()
        if follower.viewer is not None:
            self._watching.pop(follower.viewer, None)
            follower.viewer.stream.stage_ms["sent"] = now_ms()
            self._hub.detach(follower.viewer, monotonic_ms())

    def close_unless(self, stands: Callable[[Principal], bool]) -> None:
        """Who watches by what stands no longer is told so, and shown nothing more."""
        for viewer, (_, principal) in self._watching.items():
            if not stands(principal):
                viewer.close(CloseReason.UNAUTHENTICATED)

    def cut_off(self, viewers: list[Viewer]) -> None:
        """The hub has given these up: who still sends to them is told."""
        for viewer in viewers:
            follower, _ = self._watching.pop(viewer, (None, None))
            if follower is not None and follower.on_stalled is not None:
                follower.on_stalled()
