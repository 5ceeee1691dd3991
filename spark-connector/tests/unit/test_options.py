# SPDX-License-Identifier: AGPL-3.0-only
"""Options: what they mean, and that every mistake is named."""

import pickle
from pathlib import Path

import pytest
from fila_spark import OptionError, options
from fila_spark.options import EnqueueOptions, LeaseOptions, PeekOptions, StreamOptions

BASE = {"address": "127.0.0.1:1", "queue": "orders"}
SECRET = "very-private-1234"


def test_names_are_case_insensitive_as_spark_hands_them_over() -> None:
    made = PeekOptions.of({"ADDRESS": "h:1", "queue": "q", "numpartitions": "3"})
    assert (made.address, made.num_partitions) == ("h:1", 3)


def test_defaults() -> None:
    made = options.batch_read(BASE)
    assert isinstance(made, PeekOptions)
    assert made.state == "any"
    assert made.include_payload
    assert isinstance(options.batch_read({**BASE, "mode": "LEASE"}), LeaseOptions)
    assert isinstance(options.write(BASE), EnqueueOptions)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"queue": "q"}, 'option "address" is missing'),
        ({"address": "h:1"}, 'option "queue" is missing'),
        ({**BASE, "numPartitions": "0"}, 'option "numPartitions" must be an integer from 1 to'),
        ({**BASE, "numPartitions": "many"}, 'got "many"'),
        ({**BASE, "mode": "browse"}, 'option "mode" must be one of peek, lease, got "browse"'),
        ({**BASE, "includePayload": "no"}, 'option "includePayload" must be true or false'),
        ({**BASE, "numPartition": "3"}, 'did you mean "numPartitions"?'),
        ({**BASE, "bananas": "3"}, 'option "bananas" is unknown'),
        ({**BASE, "path": "x"}, "takes no path"),
        ({**BASE, "visibilityTimeoutMs": "5000"}, "means nothing to a batch read with mode=peek"),
        ({**BASE, "mode": "lease", "fairnessKey": "a"}, "means nothing to a batch read with mode="),
        ({**BASE, "tlsCertFile": "c"}, 'options "tlsCertFile" and "tlsKeyFile" go together'),
        ({**BASE, "queue": ""}, 'option "queue" must not be empty'),
    ],
)
def test_batch_read_error_names_the_option(given: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError) as caught:
        options.batch_read(given)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({**BASE, "batchRows": "0"}, 'option "batchRows"'),
        ({**BASE, "operation": "purge"}, "one of enqueue, ack, nack, redrive"),
        (
            {**BASE, "operation": "ack", "batchBytes": "5"},
            "means nothing to a write with operation",
        ),
        ({**BASE, "onStaleAck": "fail"}, "means nothing to a write with operation=enqueue"),
    ],
)
def test_write_error_names_the_option(given: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError) as caught:
        options.write(given)
    assert text in str(caught.value)


def test_a_read_is_checked_before_it_is_known_whether_it_is_a_stream() -> None:
    options.any_read(BASE)
    options.any_read({**BASE, "mode": "lease", "maxBytes": "5"})
    options.any_read({**BASE, "maxMessagesPerBatch": "5"})
    with pytest.raises(OptionError, match="maxMessagesPerBatch"):
        options.any_read({**BASE, "maxMessagesPerBatch": "0"})
    with pytest.raises(OptionError, match="bananas"):
        options.any_read({**BASE, "bananas": "1"})


def test_what_spark_adds_is_let_through() -> None:
    StreamOptions.of({**BASE, "checkpointLocation": "x"})


def test_api_key_is_in_no_text() -> None:
    made = PeekOptions.of({**BASE, "apiKeySecret": SECRET})
    assert SECRET not in repr(made)
    assert SECRET not in repr(made.connection)
    assert made.api_key() == SECRET
    assert pickle.loads(pickle.dumps(made)).api_key() == SECRET


def test_api_key_under_a_name_that_spark_shows_is_refused() -> None:
    with pytest.raises(OptionError) as caught:
        PeekOptions.of({**BASE, "apiKey": SECRET})
    assert "apiKeySecret" in str(caught.value)
    assert SECRET not in str(caught.value)


def test_api_key_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(f"{SECRET}\n")
    assert PeekOptions.of({**BASE, "apiKeyFile": str(file)}).api_key() == SECRET
    missing = PeekOptions.of({**BASE, "apiKeyFile": str(tmp_path / "none")})
    with pytest.raises(OptionError, match='option "apiKeyFile": cannot read'):
        missing.api_key()
    with pytest.raises(OptionError, match="exclude each other"):
        PeekOptions.of({**BASE, "apiKeyFile": str(file), "apiKeySecret": SECRET})


def test_tls_is_on_with_any_of_its_options() -> None:
    assert PeekOptions.of(BASE).tls_options() is None
    assert PeekOptions.of({**BASE, "tls": "true"}).tls_options() is not None
    ca = PeekOptions.of({**BASE, "tlsCaFile": "ca.pem"}).tls_options()
    assert ca is not None and ca.ca == "ca.pem"


def test_clients_are_shared_by_what_reaches_the_broker() -> None:
    one = PeekOptions.of({**BASE, "numPartitions": "3"}).connection
    other = EnqueueOptions.of(BASE).connection
    assert one == other and hash(one) == hash(other)
    assert one != PeekOptions.of({**BASE, "apiKeySecret": SECRET}).connection
