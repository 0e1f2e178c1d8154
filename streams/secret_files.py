"""Settings that hold secrets. Each may stand in a file instead, named by the field beside it that ends in `_file`."""

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationInfo

MAX_SECRET_BYTES = 65_536


def read_secret(path: Path) -> SecretStr:
    """A secret as Kubernetes mounts it: the whole file without the line's end. Raises ValueError."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_SECRET_BYTES + 1)
        text = content.decode().rstrip("\r\n")
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} holds no text") from None
    if not text or len(content) > MAX_SECRET_BYTES:
        raise ValueError(f"{path} is empty, or longer than {MAX_SECRET_BYTES} bytes")
    return SecretStr(text)


def _from_file(value: SecretStr, info: ValidationInfo) -> SecretStr:
    path = info.data.get(f"{info.field_name}_file")
    if path is None:
        return value
    secret = read_secret(path)
    if value and value != secret:  # equal: these settings were read before
        raise ValueError(f"stands in {info.field_name}_file too, otherwise; give one of them")
    return secret


def _none_if_empty(value: object) -> object:
    return None if value == "" else value


FilePath = Annotated[Path | None, BeforeValidator(_none_if_empty)]
"""Empty is none, as an environment variable says it."""
Secret = Annotated[SecretStr, AfterValidator(_from_file), Field(validate_default=True)]
"""A field of a model that has `<its name>_file: FilePath` before it."""
