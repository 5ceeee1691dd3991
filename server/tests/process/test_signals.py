# SPDX-License-Identifier: AGPL-3.0-only
"""What a running broker does on SIGHUP, and who may read its files. TLS is in rpc/test_tls.py."""

import json
import signal
from collections.abc import Callable

from fila import Client
from server.tests.broker_process import BrokerProcess
from server.tests.rpc.wire import eventually

MakeBroker = Callable[..., BrokerProcess]


def messages(broker: BrokerProcess) -> list[str]:
    return [json.loads(line)["message"] for line in broker.log().splitlines()]


def test_sighup_reads_the_log_level_again(make_broker: MakeBroker) -> None:
    broker = make_broker(config='[server]\nlog_level = "warning"\n')
    broker.start()
    assert messages(broker) == []
    broker.config_file.write_text('[server]\nlog_level = "info"\n')
    broker.signal(signal.SIGHUP)
    eventually(lambda: len(messages(broker)) == 1)
    assert messages(broker) == [
        "reloaded certificates, and the log level info; other settings need a restart"
    ]
    assert broker.terminate() == 0
    assert messages(broker)[-1] == "stopped"


def test_sighup_changes_nothing_if_the_configuration_is_bad(make_broker: MakeBroker) -> None:
    broker = make_broker()
    broker.start()
    broker.config_file.write_text('[server]\nlog_level = "loud"\n')
    broker.signal(signal.SIGHUP)
    eventually(lambda: "nothing was reloaded" in broker.log())
    assert "server.log_level = 'loud': must be" in messages(broker)[-1]
    with Client(broker.address, timeout=30) as client:
        client.create_queue("q")
    assert broker.terminate() == 0


def test_the_files_of_a_broker_are_its_own(make_broker: MakeBroker) -> None:
    broker = make_broker()
    broker.start()
    with Client(broker.address, timeout=30) as client:
        client.create_queue("q")
        client.enqueue("q", None, b"private")
    assert broker.terminate() == 0
    paths = [broker.data, *broker.data.rglob("*")]
    assert len(paths) > 5
    assert {str(path): path.stat().st_mode & 0o077 for path in paths} == dict.fromkeys(
        map(str, paths), 0
    )
