import itertools

from hypothesis import given
from hypothesis import strategies as st

from deploy.local.supervision import ALIVE, Life, RestartPolicy, State
from streams.entry_point import EXIT_SETTINGS

POLICY = RestartPolicy(first_delay_s=0.1, max_delay_s=15, stable_s=10)
lifetimes = st.floats(min_value=0, max_value=POLICY.stable_s - 0.01)
crash_codes = st.integers(min_value=-15, max_value=255).filter(lambda code: code != EXIT_SETTINGS)


def crash_and_restart(life: Life, now_s: float, *, after_s: float, ready: bool) -> tuple[Life, float, float]:
    """The life after a crash and its restart, when that was, and how long the backoff took."""
    if ready:
        life = life.ready()
    now_s += after_s
    life = life.exited(now_s, -9, POLICY)
    delay_s = life.due_s - now_s
    now_s = life.due_s
    return life.restarted(now_s), now_s, delay_s


def test_a_crash_is_followed_by_a_restart_after_the_first_delay() -> None:
    life = Life.begin(100).ready().exited(105, -9, POLICY)
    assert life.state is State.BACKOFF
    assert life.due_s == 105.1
    assert life.restarted(105.05) == life, "not before it is due"
    assert life.restarted(105.1).state is State.STARTING
    assert life.restarted(105.1).restarts == 1


@given(st.lists(st.tuples(lifetimes, st.booleans()), min_size=2, max_size=80))
def test_delays_double_with_every_early_crash_and_stay_bounded(crashes: list[tuple[float, bool]]) -> None:
    life, now_s, delays = Life.begin(0), 0.0, []
    for after_s, ready in crashes:
        life, now_s, delay_s = crash_and_restart(life, now_s, after_s=after_s, ready=ready)
        delays.append(delay_s)
    for earlier, later in itertools.pairwise(delays):
        assert abs(later - min(POLICY.max_delay_s, 2 * earlier)) < 1e-6
    assert life.restarts == len(crashes)


@given(st.integers(min_value=0, max_value=60))
def test_a_stable_life_forgets_the_crashes_before_it(early_crashes: int) -> None:
    life, now_s = Life.begin(0), 0.0
    for _ in range(early_crashes):
        life, now_s, _delay = crash_and_restart(life, now_s, after_s=1, ready=True)
    _life, _now, delay_s = crash_and_restart(life, now_s, after_s=POLICY.stable_s, ready=True)
    assert abs(delay_s - POLICY.first_delay_s) < 1e-6


@given(st.integers(min_value=1, max_value=10**9))
def test_no_number_of_crashes_exceeds_the_longest_delay(crashes: int) -> None:
    assert POLICY.first_delay_s <= POLICY.delay_s(crashes) <= POLICY.max_delay_s


@given(crash_codes, st.booleans())
def test_nothing_restarts_what_is_being_stopped(code: int, ready: bool) -> None:
    life = Life.begin(0)
    life = (life.ready() if ready else life).stopping(1)
    assert life.state is State.STOPPING
    stopped = life.exited(2, code, POLICY)
    assert stopped.state is State.STOPPED
    assert stopped.restarted(10**9) == stopped


def test_stopping_in_backoff_needs_no_further_exit() -> None:
    life = Life.begin(0).exited(1, 1, POLICY).stopping(1.01)
    assert life.state is State.STOPPED
    assert life.restarted(10**9) == life


def test_wrong_settings_are_not_tried_again() -> None:
    life = Life.begin(0).exited(0.5, EXIT_SETTINGS, POLICY)
    assert life.state is State.FAILED
    assert life.state not in ALIVE
    assert life.restarted(10**9) == life


def test_ends_before_ready_are_counted_until_it_is_ready_once() -> None:
    life, now_s = Life.begin(0), 0.0
    for expected in (1, 2, 3):
        life, now_s, _delay = crash_and_restart(life, now_s, after_s=0.1, ready=False)
        assert life.failed_starts == expected
    assert life.ready().failed_starts == 0
    assert life.ready().exited(now_s + 1, -9, POLICY).failed_starts == 0
