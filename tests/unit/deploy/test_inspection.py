from deploy.inspection import lag_by_topic


def test_lag_adds_up_partitions_and_never_goes_below_zero() -> None:
    committed = {"billing": {("usage", 0): 5, ("usage", 1): 9, ("gone", 0): 1}, "gateways": {}}
    ends = {("usage", 0): 7, ("usage", 1): 8}
    assert lag_by_topic(committed, ends) == {"billing": {"usage": 2}, "gateways": {}}
