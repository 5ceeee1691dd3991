# SPDX-License-Identifier: AGPL-3.0-only
"""Text and JSON beside bytes, in and out."""

import asyncio

import pytest

import fila


def sent(broker):
    return [m.payload for call in broker.calls("EnqueueBatch") for m in call.request.messages]


def test_text_and_json_stand_for_a_payload(broker, client):
    client.enqueue("orders", text="grüße")
    client.enqueue("orders", json={"n": [1, None], "s": "ü"})
    client.enqueue("orders", json=None)
    client.enqueue("orders", text="")
    client.enqueue_many(
        [fila.EnqueueMessage("orders", text="a"), fila.EnqueueMessage("orders", json=[])]
    )
    expected = ["grüße", '{"n":[1,null],"s":"ü"}', "null", "", "a", "[]"]
    assert sent(broker) == [text.encode() for text in expected]
    headers = [m.headers for c in broker.calls("EnqueueBatch") for m in c.request.messages]
    assert not any(headers)


def test_the_async_client_takes_them_too(broker):
    async def enqueue():
        async with fila.AsyncClient(broker.target) as client:
            await client.enqueue("orders", text="a")
            await client.enqueue("orders", json="b")

    asyncio.run(enqueue())
    assert sent(broker) == [b"a", b'"b"']


@pytest.mark.parametrize(
    "given",
    [{"payload": b"x", "text": "y"}, {"payload": b"x", "json": 1}, {"text": "", "json": None}],
)
def test_only_one_of_them_may_be_given(broker, client, given):
    with pytest.raises(ValueError, match="give one of payload, text and json"):
        client.enqueue("orders", **given)
    assert broker.seen == []


@pytest.mark.parametrize(
    ("given", "kind", "says"),
    [
        ({"text": b"x"}, TypeError, "text must be str, not bytes"),
        ({"text": "\ud800"}, ValueError, "text holds a lone surrogate"),
        ({"json": object()}, TypeError, "json: Object of type object"),
        ({"json": float("nan")}, ValueError, "json: "),
        ({"json": "\ud800"}, ValueError, "json: "),
        ({"payload": "x"}, TypeError, "give it as text="),
    ],
)
def test_what_cannot_be_written_is_named(broker, client, given, kind, says):
    with pytest.raises(kind, match=says):
        client.enqueue("orders", **given)
    assert broker.seen == []


def test_a_message_reads_as_text_and_json(wire):
    assert fila.Message(wire.message(payload="ü".encode())).text == "ü"
    assert fila.Message(wire.message(payload=b'{"a":1}')).json() == {"a": 1}
    assert fila.Message(wire.message()).text == ""


def test_a_payload_that_is_no_text_or_json_names_the_message_and_not_its_content(wire):
    binary = fila.Message(wire.message("m-7", payload=b"secret\xff"))
    for read in (lambda: binary.text, binary.json):
        with pytest.raises(ValueError, match='payload of message "m-7" is not UTF-8') as caught:
            read()
        assert "secret" not in str(caught.value)
    text = fila.Message(wire.message("m-8", payload=b"secret"))
    with pytest.raises(ValueError, match='payload of message "m-8" is not JSON') as caught:
        text.json()
    assert "secret" not in str(caught.value)
