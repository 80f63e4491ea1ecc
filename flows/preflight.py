"""What can be found wrong with a request before anything is started or written."""

import urllib.error
import urllib.request
from http.client import HTTPException

from infra.security.secrets import masked, without_userinfo
from rl.config import TINY


def check_model(model: str, also: str = "") -> None:
    """Refuse a model that transformers does not know, before anything starts or is written."""
    if model == TINY:
        return
    from transformers import AutoConfig, AutoTokenizer

    try:
        AutoConfig.from_pretrained(model, trust_remote_code=False)
        AutoTokenizer.from_pretrained(model, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"policy.model {model!r} is not {also}a model that transformers can load: {reason}") from error


def check_tracking(uri: str | None) -> None:
    """Refuse an MLflow server that is not there, before anything starts or is written."""
    if uri is None or not uri.startswith(("http://", "https://")):
        return
    address = without_userinfo(uri)
    try:
        urllib.request.urlopen(address, timeout=10).close()
    except urllib.error.HTTPError:
        pass  # somebody answers; whether it is MLflow shows later
    except (OSError, ValueError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise ValueError(
            f"tracking.uri: no MLflow server answers at {masked(address)} ({reason}); start it, or leave it out to use "
            "a file under the home"
        ) from error
