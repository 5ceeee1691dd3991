// SPDX-License-Identifier: AGPL-3.0-only

// Settlements that are sent again: what a broker says to the second of two equal requests, when
// nobody knows what became of the first.

package fila_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	fila "github.com/faiscadev/fila/sdks/go"
	"github.com/faiscadev/fila/sdks/go/internal/filapb"
)

const (
	none     = filapb.ErrorReason_ERROR_REASON_UNSPECIFIED
	notFound = filapb.ErrorReason_ERROR_REASON_MESSAGE_NOT_FOUND
	expired  = filapb.ErrorReason_ERROR_REASON_LEASE_EXPIRED
)

// judging answers every item of a settlement with a reason, or well.
func judging(reason filapb.ErrorReason) script {
	var refused *filapb.ItemError
	if reason != none {
		refused = &filapb.ItemError{Reason: reason}
	}
	return func(_ context.Context, request proto.Message) (proto.Message, error) {
		switch request := request.(type) {
		case *filapb.AckBatchRequest:
			answer := &filapb.AckBatchResponse{Results: itemResults(len(request.GetAcks()))}
			for _, each := range answer.GetResults() {
				each.Error = refused
			}
			return answer, nil
		case *filapb.NackBatchRequest:
			answer := &filapb.NackBatchResponse{Results: itemResults(len(request.GetNacks()))}
			for _, each := range answer.GetResults() {
				each.Error = refused
			}
			return answer, nil
		case *filapb.ExtendLeaseRequest:
			answer := &filapb.ExtendLeaseResponse{}
			for range request.GetExtensions() {
				result := &filapb.ExtendLeaseResult{Error: refused}
				answer.Results = append(answer.Results, result)
			}
			return answer, nil
		}
		return nil, errors.New("not a settlement")
	}
}

// settlementOf is one way to settle a message, and the call that it makes.
type settlementOf struct {
	method string
	settle func(client *fila.Client, token string) error
}

var (
	acking = settlementOf{"AckBatch", func(c *fila.Client, token string) error {
		return c.Ack(context.Background(), "orders", "m", token)
	}}
	nacking = settlementOf{"NackBatch", func(c *fila.Client, token string) error {
		return c.Nack(context.Background(), "orders", "m", token, "why")
	}}
	extending = settlementOf{"ExtendLease", func(c *fila.Client, token string) error {
		_, err := c.Extend(context.Background(), "orders", "m", token, time.Minute)
		return err
	}}
)

func TestSettlementsWithATokenAreSentAgain(t *testing.T) {
	for _, each := range []settlementOf{acking, nacking, extending} {
		b := startBroker(t)
		client := newClient(t, b.target, quick)
		b.script(each.method, failing(2, judging(none)))
		check(t, each.settle(client, "token"))
		equal(t, each.method, len(b.seenOf(each.method)), 3)

		b.script(each.method, failing(2, judging(none)))
		wantKind(t, each.settle(client, ""), fila.ErrUnavailable)
		equal(t, each.method+" without a token", len(b.seenOf(each.method)), 4)
	}
}

func TestWhatARepeatFindsDoneSucceeded(t *testing.T) {
	for _, each := range []struct {
		what   settlementOf
		reason filapb.ErrorReason
		// kind is what the second request fails with; nil for success.
		kind error
	}{
		{acking, notFound, nil},
		{acking, expired, fila.ErrLeaseExpired},
		{nacking, notFound, nil},
		{nacking, expired, nil},
		{extending, notFound, fila.ErrMessageNotFound},
		{extending, expired, fila.ErrLeaseExpired},
	} {
		b := startBroker(t)
		client := newClient(t, b.target, quick)
		b.script(each.what.method, failing(1, judging(each.reason)))
		err := each.what.settle(client, "token")
		if each.kind == nil {
			check(t, err)
		} else {
			wantKind(t, err, each.kind)
		}
		equal(t, "requests", len(b.seenOf(each.what.method)), 2)

		// The first request is believed.
		if err := each.what.settle(client, "token"); err == nil {
			t.Fatalf("%s: a first %v was taken for success", each.what.method, each.reason)
		}
	}
}

func TestFrameThatARepeatFindsAckedSucceeded(t *testing.T) {
	b := startBroker(t)
	b.deliverFrames(2, 2)
	client := newClient(t, b.target, quick)
	frames := receiveFrames(t, client, 2)
	b.settleGrants(map[string]filapb.ErrorReason{"t0": expired, "t1": expired})
	b.lock.Lock()
	refused := b.scripts["SettleGrants"]
	b.lock.Unlock()
	b.script("SettleGrants", failing(1, refused))
	b.script("AckBatch", judging(notFound))
	errs, err := client.AckMany(t.Context(), frames[0])
	check(t, errors.Join(append(errs, err)...))
	equal(t, "acks of their own", b.acked(), "t0-0 t0-1")

	errs, err = client.AckMany(t.Context(), frames[1])
	check(t, err)
	for _, each := range errs {
		wantKind(t, each, fila.ErrMessageNotFound)
	}
}

func TestManyNacksThatARepeatFindsDoneSucceeded(t *testing.T) {
	b := startBroker(t)
	b.deliverFrames(2)
	client := newClient(t, b.target, quick)
	b.script("NackBatch", failing(1, judging(expired)))
	errs, err := client.NackMany(t.Context(), receiveFrames(t, client, 1)[0], "why")
	check(t, errors.Join(append(errs, err)...))
	equal(t, "requests", len(b.seenOf("NackBatch")), 2)
}

func TestNackMaySayThatNobodyShouldTryAgain(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	check(t, client.Nack(t.Context(), "orders", "m", "t", "hopeless", fila.WithDeadLetter()))
	check(t, client.Nack(t.Context(), "orders", "m", "t", "hopeful"))
	calls := b.seenOf("NackBatch")
	for i, want := range []bool{true, false} {
		nack := calls[i].request.(*filapb.NackBatchRequest).GetNacks()[0]
		equal(t, "dead letter", nack.GetDeadLetter(), want)
	}
}

func TestManyLeasesAreExtendedByOneRequest(t *testing.T) {
	b := startBroker(t)
	b.deliverFrames(3)
	end := time.Unix(1_900_000_000, 0)
	b.script("ExtendLease", func(_ context.Context, request proto.Message) (proto.Message, error) {
		answer := &filapb.ExtendLeaseResponse{}
		for _, each := range request.(*filapb.ExtendLeaseRequest).GetExtensions() {
			result := &filapb.ExtendLeaseResult{LeaseExpiresAt: timestamppb.New(end)}
			if each.GetMessageId() == "t0-1" {
				result = &filapb.ExtendLeaseResult{Error: &filapb.ItemError{Reason: expired}}
			}
			answer.Results = append(answer.Results, result)
		}
		return answer, nil
	})
	client := newClient(t, b.target)
	messages, err := client.Receive(t.Context(), "orders", 3)
	check(t, err)
	results, err := client.ExtendMany(t.Context(), messages, 1500*time.Microsecond)
	check(t, err)
	equal(t, "requests", len(b.seenOf("ExtendLease")), 1)
	for i, result := range results {
		if i == 1 {
			equal(t, "message", wantKind(t, result.Err, fila.ErrLeaseExpired).MessageID, "t0-1")
			continue
		}
		check(t, result.Err)
		equal(t, "end", result.LeaseExpiresAt.Equal(end), true)
	}
	sent := b.seenOf("ExtendLease")[0].request.(*filapb.ExtendLeaseRequest).GetExtensions()
	equal(t, "milliseconds", sent[0].GetExtendMs(), 2)
	equal(t, "token", sent[0].GetLeaseToken(), "t0")
	_, err = client.ExtendMany(t.Context(), messages, -1)
	wantKind(t, err, fila.ErrInvalidArgument)
	check(t, client.Close())
	_, err = client.ExtendMany(t.Context(), messages, 0)
	wantKind(t, err, fila.ErrClientClosed)
}
