// SPDX-License-Identifier: AGPL-3.0-only

package fila_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/faiscadev/fila/sdks/go/internal/filapb"
)

func TestMessageHasEveryFieldOfItsDelivery(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	b.script("Receive", replyWith(&filapb.ReceiveResponse{Messages: []*filapb.Message{{
		Id: "m-1", Headers: map[string]string{"a": "b"}, Payload: []byte("x"),
		Metadata: &filapb.MessageMetadata{
			FairnessKey: "acme", Weight: 2, ThrottleKeys: []string{"mail"}, AttemptCount: 3,
			QueueId: "orders", LeaseToken: "t", LastError: "oops", Failures: wireFailures,
		},
		Timestamps: &filapb.MessageTimestamps{
			EnqueuedAt: timestamp, LeaseExpiresAt: timestamp,
		},
	}, {Id: "bare"}}}))
	messages, err := client.Receive(t.Context(), "orders", 2)
	check(t, err)
	m := messages[0]
	equal(t, "text", m.ID+m.Queue+m.FairnessKey+m.LeaseToken+m.LastError, "m-1ordersacmetoops")
	equal(t, "header", m.Headers["a"], "b")
	equal(t, "payload", string(m.Payload), "x")
	equal(t, "weight", m.Weight, 2)
	equal(t, "throttle keys", strings.Join(m.ThrottleKeys, " "), "mail")
	equal(t, "attempts", m.AttemptCount, 3)
	wantValue(t, m.Failures, plainFailures)
	equal(t, "enqueued at", m.EnqueuedAt, moment)
	equal(t, "lease expires at", m.LeaseExpiresAt, moment)
	equal(t, "no time", messages[1].EnqueuedAt.IsZero(), true)
}

func TestMessageIsSettledWithItsOwnToken(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	b.script("Receive", replyWith(&filapb.ReceiveResponse{Messages: frame("m-1").GetMessages()}))
	b.script("ExtendLease", replyWith(&filapb.ExtendLeaseResponse{
		Results: []*filapb.ExtendLeaseResult{{LeaseExpiresAt: timestamp}},
	}))
	messages, err := client.Receive(t.Context(), "orders", 1)
	check(t, err)
	end, err := messages[0].Extend(t.Context(), 2*time.Second)
	check(t, err)
	equal(t, "end", end, moment)
	check(t, messages[0].Nack(t.Context(), "why"))
	check(t, messages[0].Ack(t.Context()))
	wantRequest(t, b, "ExtendLease", &filapb.ExtendLeaseRequest{
		Extensions: []*filapb.LeaseExtension{{
			Queue: "orders", MessageId: "m-1", LeaseToken: "token-of-m-1", ExtendMs: 2000,
		}},
	})
	wantRequest(t, b, "NackBatch", &filapb.NackBatchRequest{Nacks: []*filapb.NackRequest{{
		Queue: "orders", MessageId: "m-1", LeaseToken: "token-of-m-1", Error: "why",
	}}})
	wantRequest(t, b, "AckBatch", &filapb.AckBatchRequest{Acks: []*filapb.AckRequest{{
		Queue: "orders", MessageId: "m-1", LeaseToken: "token-of-m-1",
	}}})
}

func TestPrintingAMessageShowsNeitherPayloadNorHeaders(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	sent := proto.CloneOf(frame("m-1").GetMessages()[0])
	sent.Payload, sent.Headers = []byte("s3cret"), map[string]string{"h": "s3cret"}
	b.script("Receive", replyWith(&filapb.ReceiveResponse{Messages: []*filapb.Message{sent}}))
	messages, err := client.Receive(t.Context(), "orders", 1)
	check(t, err)
	shown := fmt.Sprintf("%v %+v %s", messages[0], messages[0], messages[0].Message)
	if strings.Contains(shown, "s3cret") || !strings.Contains(shown, `message "m-1"`) {
		t.Fatal(shown)
	}
}
