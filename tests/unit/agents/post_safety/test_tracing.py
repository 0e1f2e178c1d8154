"""Post-safety tells the spans of what it has ended, also after a restart, which tells the same again."""

from streams.ids import ResponseIds
from streams.tracing.context import ROOT
from streams.tracing.tracing import tracing_of
from tests.collector import collecting
from tests.servers import until
from tests.unit.agents.post_safety.story import Member, World, fence, opened, plain_answer
from tests.unit.streams.tracing.test_spans import settings_of

IDS = ResponseIds("local", [b"s" * 32])


def test_what_has_ended_is_told_to_the_collector_and_a_rebuild_tells_the_same() -> None:
    world = World()
    response_id = IDS.derive(8, "acme", "intake.batch", "job-1", at_ms=1_000)
    world.write(opened("open"), fence("open"))  # nothing is committed beyond it, so all is read again
    plain_answer(world, response_id)
    with collecting() as collector:
        member = Member(world, tracing=tracing_of(settings_of(collector.endpoint)))
        member.run(ms=100)
        until(lambda: len(collector.received()) == 4, "its spans have come")
        told = collector.spans()
        member.kill()
        member.run()
        until(lambda: len(collector.received()) == 8, "they have come again")
        member.process.close()
    assert collector.spans() == told
    spans = collector.named(response_id[-32:])
    assert spans.keys() == {ROOT, "prefill", "decode", "post-safety"}
    assert {span.parent_id for name, span in spans.items() if name != ROOT} == {spans[ROOT].span_id}
