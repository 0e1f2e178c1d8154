import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from streams.settings import SettingsError, load_settings

CONFIG = """
region = "eu1"
[kafka]
bootstrap = "10.0.0.1:9092"
[[pools]]
name = "default"
engine = "simulated"
[[models]]
name = "tiny"
path = "models/tiny"
pool = "default"
context_window = 4096
"""
OTHER = "[[models]]\nname='m'\npath='p'\npool='default'\ncontext_window=64\n"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "sluice.toml"
    path.write_text(CONFIG)
    monkeypatch.setenv("SLUICE_CONFIG", str(path))
    return path


def test_the_environment_beats_the_file_beats_the_defaults(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_KAFKA__SESSION_TIMEOUT_MS", "6000")
    settings = load_settings()
    assert settings.kafka.session_timeout_ms == 6_000
    assert settings.kafka.bootstrap == "10.0.0.1:9092"
    assert settings.gateway.port == 8080
    assert settings.topics.requests.name == "eu1.requests"


@pytest.mark.parametrize(
    ("added", "named"),
    [
        ("[gateway]\nport = 70000", "gateway.port"),
        ("[gateway]\nprot = 1", "gateway.prot"),
        ("[gateway]\nleave_ms = 3_600_000", "gateway.leave_ms"),
        ("[[pools]]\nname = 'default'\nengine = 'vllm'", "pools"),
        ("[[models]]\nname='m'\npath='p'\npool='nowhere'\ncontext_window=64", "models.m.pool"),
        ("[[models]]\nname='m'\npath='p'\npool='default'\ncontext_window=1", "models.1.context_window"),
        (f"{OTHER}alternates=['nowhere']", "models.m.alternates: no pool 'nowhere'"),
        (f"{OTHER}alternates=['default']", "models.m.alternates: a pool is named twice"),
        (f"{OTHER}fallback='nobody'", "models.m.fallback: no other model 'nobody'"),
        (f"{OTHER}fallback='m'", "models.m.fallback: no other model 'm'"),
        (f"{OTHER}fallback='tiny'\nembedding={{dimensions=64}}", "models.m.fallback: vectors"),
        (OTHER, "pools.default: 2 models name it"),
        ("[[models]]\nname='模型'\npath='p'\npool='default'\ncontext_window=64", "models.1.name"),
        (f'{OTHER}aliases=["a\\r\\nb"]', "models.1.aliases.0"),
        ("[brownout]\nmax_level=1\npinned={default=2}", "brownout.*pinned.default: 2 is more than max_level"),
        ("[gateway]\nallowed_origins=['https://chat.example/']", "gateway.allowed_origins.0"),
        ("[gateway]\nallowed_origins=['https://Chat.example']", "gateway.allowed_origins.0"),
        ("[gateway]\nallowed_origins=['https://chat.example:443']", "gateway.allowed_origins.0"),
        ("not toml", "sluice.toml"),
    ],
)
def test_a_wrong_field_is_named(config: Path, added: str, named: str) -> None:
    config.write_text(CONFIG + added)
    with pytest.raises(SettingsError, match=named):
        load_settings()


def test_a_variable_of_no_section_is_named(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kubernetes adds variables for each service beside a pod, and those have no double underscore."""
    monkeypatch.setenv("SLUICE_GATEWAY_SERVICE_HOST", "10.0.0.7")
    monkeypatch.setenv("SLUICE_API_PORT_8080_TCP_ADDR", "10.0.0.7")
    load_settings()
    monkeypatch.setenv("SLUICE_KAKFA__BOOTSTRAP", "10.0.0.2:9092")
    with pytest.raises(SettingsError, match="SLUICE_KAKFA__BOOTSTRAP: no such setting"):
        load_settings()


def test_a_missing_file_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SLUICE_CONFIG", str(tmp_path / "nowhere.toml"))
    with pytest.raises(SettingsError, match=r"SLUICE_CONFIG: no file"):
        load_settings()


def test_a_secret_is_never_printed(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_DEPLOYMENT_SECRET", "very-secret")
    assert "very-secret" not in repr(load_settings())


@pytest.mark.parametrize(
    ("added", "url"),
    [
        ("", "http://127.0.0.1:18123"),
        ('host = "0.0.0.0"\nport = 8123', "http://127.0.0.1:8123"),
        ('host = "0.0.0.0"\nurl = "https://billing.internal:8443/"', "https://billing.internal:8443"),
    ],
)
def test_clients_of_billing_have_an_address_of_their_own(config: Path, added: str, url: str) -> None:
    config.write_text(f"{CONFIG}\n[billing]\n{added}\n")
    assert load_settings().billing.client_url == url


def test_an_address_of_billing_that_is_none_is_named(config: Path) -> None:
    config.write_text(f'{CONFIG}\n[billing]\nurl = "billing.internal:8443"\n')
    with pytest.raises(SettingsError, match=r"billing\.url"):
        load_settings()


def test_what_other_variables_say_is_loaded_without_touching_those_of_the_process() -> None:
    before = dict(os.environ)
    with ThreadPoolExecutor(8) as pool:
        ports = list(
            pool.map(lambda port: load_settings({"SLUICE_GATEWAY__PORT": str(port)}).gateway.port, range(1, 200))
        )
    assert ports == list(range(1, 200))
    assert dict(os.environ) == before


def test_wrong_arguments_of_simulated_engines_are_named_before_anything_starts(tmp_path: Path) -> None:
    """Each in a line of its own, by pool; what an engine of vectors does not know is none of its arguments."""
    config = tmp_path / "sluice.toml"
    config.write_text(
        CONFIG.replace(
            'engine = "simulated"', 'engine = "simulated"\nengine_args = { min_outptu_tokens = 3, step_ms = 0 }'
        )
        + OTHER.replace("pool='default'", "pool='vectors'\nembedding={dimensions=8}")
        + "[[pools]]\nname='vectors'\nengine='simulated'\nengine_args={inter_token_ms=5, prompt_token_us=2}\n"
    )
    with pytest.raises(SettingsError) as refused:
        load_settings({"SLUICE_CONFIG": str(config)})
    assert str(refused.value).splitlines() == [
        "settings: pools.default.engine_args.step_ms: Input should be greater than 0",
        "settings: pools.default.engine_args.min_outptu_tokens: Extra inputs are not permitted",
        "settings: pools.vectors.engine_args.inter_token_ms: Extra inputs are not permitted",
    ]
