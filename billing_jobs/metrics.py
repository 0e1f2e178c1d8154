"""What billing shows at `/metrics`. Names end in their unit."""

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from billing_jobs.charged import Charged

_INSERT_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class BillingMetrics:
    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self.lag_records = Gauge(
            "sluice_billing_lag_records", "Usage records in the log that are not in the tables.", registry=registry
        )
        self.lag_seconds = Gauge(
            "sluice_billing_lag_seconds", "Age of the time up to which all usage is stored.", registry=registry
        )
        self.rows = Counter(
            "sluice_billing_rows_total", "Rows given to ClickHouse in stored batches.", ["table"], registry=registry
        )
        self.insert_seconds = Histogram(
            "sluice_billing_insert_seconds", "Of one batch, all tables.", buckets=_INSERT_BUCKETS_S, registry=registry
        )
        self.insert_failures = Counter(
            "sluice_billing_insert_failures_total", "Attempts that will be repeated.", registry=registry
        )
        self.recovered_cuts = Counter(
            "sluice_billing_recovered_cuts_total", "Committed cuts that were inserted again.", registry=registry
        )
        self.dropped_cuts = Counter(
            "sluice_billing_dropped_cuts_total", "Cuts left to another owner of the partition.", registry=registry
        )
        self.dead_letters = Counter(
            "sluice_billing_dead_letters_total", "Records that cannot be billed.", ["reason"], registry=registry
        )
        self.refused = Counter(
            "sluice_billing_refused_total", "Connections and requests refused as such.", ["code"], registry=registry
        )
        self.suspense_events = Counter(
            "sluice_billing_suspense_events_total",
            "Billable events without a known price; they cost nothing until there is one. Alert on any.",
            registry=registry,
        )
        self.repriced_events = Counter(
            "sluice_billing_repriced_events_total", "Events that had waited for a price.", registry=registry
        )
        self.charged = Charged()
        registry.register(self.charged)
        self.analysts_statements = Counter(
            "sluice_billing_analysts_statements_total",
            "Statements of analysts and of the operator, by ClickHouse's name of how they failed.",
            ["outcome"],
            registry=registry,
        )
        self.readers_killed = Counter(
            "sluice_billing_readers_killed_total", "Of analysts: they did not end in time.", registry=registry
        )
        self.prices_not_applied = Gauge(
            "sluice_billing_prices_not_applied",
            "Models whose price in the settings is not the one in force, when billing started.",
            registry=registry,
        )
        self.worker_hour_cost = Gauge(
            "sluice_billing_worker_hour_cost",
            "What an hour of one worker costs, in the currency, by the price that was in force when billing started.",
            ["pool", "currency"],
            registry=registry,
        )
        self.reconciled_age_seconds = Gauge(
            "sluice_billing_reconciled_age_seconds",
            "Age of the time up to which log and tables were compared.",
            registry=registry,
        )
        self.differing_hours = Gauge(
            "sluice_billing_differing_hours",
            "Hours of tenants of which the log and the tables say different things. Alert on any.",
            ["source"],
            registry=registry,
        )
        self.reconciled_rows = Counter(
            "sluice_billing_reconciled_rows_total", "What the log says, compared with tables.", ["source"],
            registry=registry,
        )  # fmt: skip
        self.reconciled_unreadable = Counter(
            "sluice_billing_reconciled_unreadable_total", "Records of usage that are no bill.", registry=registry
        )
        self.reconciliation_failures = Counter(
            "sluice_billing_reconciliation_failures_total", "Looks that will be repeated.", registry=registry
        )
        self.webhooks = Counter(
            "sluice_billing_webhooks_total",
            "Messages of alerts by what came of each try: taken, failed, given_up. Alert on any that is given up.",
            ["outcome"],
            registry=registry,
        )
        self.webhooks_waiting = Gauge(
            "sluice_billing_webhooks_waiting", "Messages that nobody has taken yet.", registry=registry
        )
        self.open_hours = Gauge(
            "sluice_billing_open_hours",
            "Hours of usage that are read from the events, not from sums.",
            registry=registry,
        )
        self.rollup_seconds = Histogram(
            "sluice_billing_rollup_seconds", "To sum one hour of usage.", buckets=_INSERT_BUCKETS_S, registry=registry
        )
        self.rollup_failures = Counter(
            "sluice_billing_rollup_failures_total", "Hours that could not be summed then.", registry=registry
        )
