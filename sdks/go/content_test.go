// SPDX-License-Identifier: AGPL-3.0-only

package fila_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	fila "github.com/faiscadev/fila/sdks/go"
	"github.com/faiscadev/fila/sdks/go/internal/filapb"
)

type order struct {
	Number int    `json:"number"`
	Name   string `json:"name"`
}

func TestTextAndJSONComeOutAsTheyWentIn(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	_, err := client.EnqueueText(t.Context(), "orders", nil, "schön", fila.WithFairnessKey("acme"))
	check(t, err)
	headers := map[string]string{"tenant": "acme"}
	_, err = client.EnqueueJSON(t.Context(), "orders", headers, order{7, "schön"})
	check(t, err)
	sent := b.seenOf("EnqueueBatch")
	text := sent[0].request.(*filapb.EnqueueBatchRequest).GetMessages()[0]
	equal(t, "fairness key", text.GetFairnessKey(), "acme")
	equal(t, "headers of the text", len(text.GetHeaders()), 0)
	found, err := fila.Message{Payload: text.GetPayload()}.Text()
	check(t, err)
	equal(t, "text", found, "schön")
	written := sent[1].request.(*filapb.EnqueueBatchRequest).GetMessages()[0]
	equal(t, "headers of the JSON", len(written.GetHeaders()), 1)
	var read order
	check(t, fila.Message{Payload: written.GetPayload()}.JSON(&read))
	equal(t, "value", read, order{7, "schön"})
}

func TestWhatIsNoTextOrJSONIsNotSent(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	_, err := client.EnqueueText(t.Context(), "orders", nil, "x\xffy")
	failure := wantKind(t, err, fila.ErrInvalidArgument)
	equal(t, "queue", failure.Queue, "orders")
	_, err = client.EnqueueJSON(t.Context(), "orders", nil, make(chan int))
	wantKind(t, err, fila.ErrInvalidArgument)
	var unsupported *json.UnsupportedTypeError
	equal(t, "the cause is there", errors.As(err, &unsupported), true)
	equal(t, "requests", len(b.seenOf("EnqueueBatch")), 0)
}

func TestPayloadsThatAreNeitherNameTheirMessage(t *testing.T) {
	broken := fila.Message{ID: "m-1", Payload: []byte("\"x\xffy\"")}
	_, err := broken.Text()
	var text string
	for _, each := range []error{
		err, broken.JSON(&text), fila.Message{ID: "m-1", Payload: []byte("{")}.JSON(&text),
		fila.Message{ID: "m-1", Payload: []byte("7")}.JSON(&text),
	} {
		if each == nil || !strings.HasPrefix(each.Error(), `message "m-1": `) {
			t.Fatalf("the error is %v", each)
		}
	}
	var mismatch *json.UnmarshalTypeError
	err = fila.Message{Payload: []byte("7")}.JSON(&text)
	equal(t, "the cause is there", errors.As(err, &mismatch), true)
}
