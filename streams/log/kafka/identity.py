"""Which log this is: the name stays when a topic or a whole cluster is made anew, and offsets begin at 0 again."""

from confluent_kafka import TopicCollection, Uuid
from confluent_kafka.admin import AdminClient

from streams.log.kafka.client import settled, translated
from streams.log.kafka.config import client_config
from streams.log.port import LogError
from streams.settings import KafkaSettings

_CALL_TIMEOUT_S = 10.0
_NO_ID = str(Uuid(0, 0))


def log_id(settings: KafkaSettings, topic: str) -> str:
    """`<cluster id>/<topic id>`; another one after a topic was deleted and created, or with another cluster.

    A part is empty where the brokers are too old to tell. Raises LogError.
    """
    admin = AdminClient({**client_config(settings, "log-identity"), "log_level": 0})

    def look_up() -> str:
        with translated(f"identity of {topic}"):
            cluster = admin.list_topics(topic, timeout=_CALL_TIMEOUT_S).cluster_id or ""
            asked = admin.describe_topics(TopicCollection([topic]), request_timeout=_CALL_TIMEOUT_S)
            try:
                found = str(asked[topic].result(_CALL_TIMEOUT_S).topic_id)
            except TimeoutError:
                raise LogError(f"identity of {topic}: no answer", retriable=True) from None
        return f"{cluster}/{'' if found == _NO_ID else found}"

    return settled(lambda _may_take_s: look_up(), lambda: None)
