// SPDX-License-Identifier: AGPL-3.0-only

package fila_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	fila "github.com/faiscadev/fila/sdks/go"
	"github.com/faiscadev/fila/sdks/go/internal/filapb"
)

// deliverFrames lets Receive return frames of so many messages: t0-0, t0-1, ... under the token t0.
func (b *broker) deliverFrames(sizes ...int) {
	var lock sync.Mutex
	number := 0
	b.script("Receive", func(context.Context, proto.Message) (proto.Message, error) {
		lock.Lock()
		defer lock.Unlock()
		answer := &filapb.ReceiveResponse{}
		for n := range sizes[number] {
			answer.Messages = append(answer.Messages, &filapb.Message{
				Id: fmt.Sprintf("t%d-%d", number, n),
				Metadata: &filapb.MessageMetadata{
					QueueId: "orders", LeaseToken: fmt.Sprintf("t%d", number),
				},
			})
		}
		number++
		return answer, nil
	})
}

// settleGrants answers settlements with what was expected, and with errors by token.
func (b *broker) settleGrants(refused map[string]filapb.ErrorReason) {
	b.script("SettleGrants", func(_ context.Context, request proto.Message) (proto.Message, error) {
		answer := &filapb.SettleGrantsResponse{}
		for _, each := range request.(*filapb.SettleGrantsRequest).GetSettlements() {
			result := &filapb.GrantResult{Messages: each.GetExpectedMessages()}
			if reason, isRefused := refused[each.GetLeaseToken()]; isRefused {
				result = &filapb.GrantResult{Error: &filapb.ItemError{Reason: reason}}
			}
			answer.Results = append(answer.Results, result)
		}
		return answer, nil
	})
}

func (b *broker) settlements() string {
	var found []string
	for _, call := range b.seenOf("SettleGrants") {
		for _, each := range call.request.(*filapb.SettleGrantsRequest).GetSettlements() {
			found = append(found, fmt.Sprintf("%s:%d", each.GetLeaseToken(), each.GetExpectedMessages()))
		}
	}
	return strings.Join(found, " ")
}

func (b *broker) acked() string {
	var found []string
	for _, call := range b.seenOf("AckBatch") {
		for _, each := range call.request.(*filapb.AckBatchRequest).GetAcks() {
			found = append(found, each.GetMessageId())
		}
	}
	return strings.Join(found, " ")
}

func receiveFrames(t *testing.T, client *fila.Client, count int) [][]*fila.ConsumeMessage {
	t.Helper()
	frames := make([][]*fila.ConsumeMessage, count)
	for i := range frames {
		messages, err := client.Receive(t.Context(), "orders", 100)
		if err != nil {
			t.Fatal(err)
		}
		frames[i] = messages
	}
	return frames
}

func TestFramesThatAreAckedTogetherTravelAsOne(t *testing.T) {
	b := startBroker(t)
	b.deliverFrames(3, 2500)
	b.settleGrants(nil)
	client := newClient(t, b.target)
	frames := receiveFrames(t, client, 2)
	errs, err := client.AckMany(t.Context(), append(frames[1], frames[0]...))
	if err != nil || len(errs) != 2503 || errors.Join(errs...) != nil {
		t.Fatal(err, errors.Join(errs...))
	}
	if got := b.settlements(); got != "t1:2500 t0:3" {
		t.Error(got)
	}
	if got := b.acked(); got != "" {
		t.Error(got)
	}
}

func TestWhatIsNotWholeIsAckedOneByOne(t *testing.T) {
	b := startBroker(t)
	b.deliverFrames(3, 1, 2)
	b.settleGrants(nil)
	client := newClient(t, b.target)
	frames := receiveFrames(t, client, 3)
	twice := frames[2][0]
	batch := slices.Concat(frames[0][:2], frames[1], []*fila.ConsumeMessage{twice, twice})
	if errs, err := client.AckMany(t.Context(), batch); err != nil || errors.Join(errs...) != nil {
		t.Fatal(err, errs)
	}
	if got := b.acked(); got != "t0-0 t0-1 t1-0 t2-0 t2-0" || b.settlements() != "" {
		t.Error(got, b.settlements())
	}
}

func TestAFrameThatIsRefused(t *testing.T) {
	b := startBroker(t)
	b.deliverFrames(2, 2, 2)
	b.settleGrants(map[string]filapb.ErrorReason{
		"t0": filapb.ErrorReason_ERROR_REASON_LEASE_EXPIRED,
		"t1": filapb.ErrorReason_ERROR_REASON_QUEUE_NOT_FOUND,
	})
	b.script("AckBatch", replyWith(&filapb.AckBatchResponse{Results: []*filapb.ItemResult{
		{},
		{Error: &filapb.ItemError{Reason: filapb.ErrorReason_ERROR_REASON_LEASE_EXPIRED}},
	}}))
	client := newClient(t, b.target)
	frames := receiveFrames(t, client, 3)
	errs, err := client.AckMany(
		t.Context(), append(append(frames[0], frames[1]...), frames[2]...),
	)
	if err != nil {
		t.Fatal(err)
	}
	if errs[0] != nil || errs[4] != nil || errs[5] != nil {
		t.Error(errs)
	}
	for at, want := range map[int]error{
		1: fila.ErrLeaseExpired, 2: fila.ErrQueueNotFound, 3: fila.ErrQueueNotFound,
	} {
		if !errors.Is(errs[at], want) {
			t.Error(at, errs[at])
		}
	}
	var third *fila.Error
	if !errors.As(errs[3], &third) || third.MessageID != "t1-1" {
		t.Error(errs[3])
	}
	if got := b.acked(); got != "t0-0 t0-1" {
		t.Error(got)
	}
}

func TestNothingIsAckedAfterGrantsThatCouldNotBeSettled(t *testing.T) {
	b := startBroker(t)
	b.deliverFrames(2, 2)
	b.script("SettleGrants", refuse(codes.Internal, "broken", ""))
	client := newClient(t, b.target)
	frames := receiveFrames(t, client, 2)
	errs, err := client.AckMany(t.Context(), append(frames[0], frames[1][0]))
	if err != nil {
		t.Fatal(err)
	}
	for _, each := range errs {
		if !errors.Is(each, fila.ErrInternal) {
			t.Error(each)
		}
	}
	if got := b.acked(); got != "" {
		t.Error(got)
	}
}

func TestABrokerThatKnowsNoGrantsIsAskedOnce(t *testing.T) {
	b := startBroker(t)
	b.scriptPipelines(unknown)
	b.deliverFrames(2, 2)
	client := newClient(t, b.target)
	for _, frame := range receiveFrames(t, client, 2) {
		if errs, err := client.AckMany(t.Context(), frame); err != nil || errors.Join(errs...) != nil {
			t.Fatal(err, errs)
		}
	}
	if calls := len(b.seenOf("SettleGrants")); calls != 1 {
		t.Error(calls)
	}
	if got := b.acked(); got != "t0-0 t0-1 t1-0 t1-1" {
		t.Error(got)
	}
}

func TestConcurrentAcksOfAFrameAreOne(t *testing.T) {
	b := startBroker(t)
	b.deliverFrames(2, 2, 5)
	b.settleGrants(nil)
	gate := make(chan struct{})
	b.script("AckBatch", held(gate, settleAll))
	client := newClient(t, b.target)
	frames := receiveFrames(t, client, 3)
	var acks sync.WaitGroup
	ack := func(message *fila.ConsumeMessage) {
		acks.Go(func() {
			if err := message.Ack(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	for i, frame := range frames[:2] {
		ack(frame[0])
		b.waitForCalls("AckBatch", i+1)
	}
	for _, message := range frames[2] {
		ack(message)
	}
	// They wait in line for a slot; nothing on the wire shows when the last one has arrived there.
	eventually(t, "all of them wait", func() bool { return fila.WaitingAcks(client) == 5 })
	close(gate)
	acks.Wait()
	if got := b.settlements(); got != "t2:5" {
		t.Error(got, b.acked())
	}
}

func TestAGrantIsSettledByItsToken(t *testing.T) {
	b := startBroker(t)
	end := time.Date(2030, 1, 2, 0, 0, 0, 0, time.UTC)
	b.script("SettleGrants", replyWith(&filapb.SettleGrantsResponse{Results: []*filapb.GrantResult{
		{Messages: 7, LeaseExpiresAt: timestamppb.New(end)},
	}}))
	client := newClient(t, b.target)
	ctx := t.Context()
	if count, err := client.AckGrant(ctx, "orders", "t", "a", "b"); count != 7 || err != nil {
		t.Error(count, err)
	}
	retry := []fila.NackOption{fila.WithRetryAfter(0), fila.WithThrottledKey("k")}
	count, err := client.NackGrant(ctx, "orders", "t", "no", nil, retry...)
	if count != 7 || err != nil {
		t.Error(count, err)
	}
	until, err := client.ExtendGrant(ctx, "orders", "t", time.Second, "c")
	if !until.Equal(end) || err != nil {
		t.Error(until, err)
	}
	dead := fila.WithDeadLetter()
	if _, err := client.NackGrant(ctx, "orders", "t", "hopeless", nil, dead); err != nil {
		t.Error(err)
	}
	want := []*filapb.GrantSettlement{
		{
			Queue: "orders", LeaseToken: "t", ExceptMessageIds: []string{"a", "b"},
			Action: &filapb.GrantSettlement_Ack{Ack: &filapb.GrantAck{}},
		},
		{
			Queue: "orders", LeaseToken: "t",
			Action: &filapb.GrantSettlement_Nack{Nack: &filapb.GrantNack{
				Error: "no", RetryAfterMs: proto.Uint64(0), ThrottleKey: "k",
			}},
		},
		{
			Queue: "orders", LeaseToken: "t", ExceptMessageIds: []string{"c"},
			Action: &filapb.GrantSettlement_Extend{Extend: &filapb.GrantExtension{ExtendMs: 1000}},
		},
		{
			Queue: "orders", LeaseToken: "t",
			Action: &filapb.GrantSettlement_Nack{Nack: &filapb.GrantNack{
				Error: "hopeless", DeadLetter: true,
			}},
		},
	}
	for i, call := range b.seenOf("SettleGrants") {
		got := call.request.(*filapb.SettleGrantsRequest).GetSettlements()[0]
		if !proto.Equal(got, want[i]) {
			t.Error(got)
		}
	}
	b.settleGrants(map[string]filapb.ErrorReason{
		"t": filapb.ErrorReason_ERROR_REASON_LEASE_EXPIRED,
	})
	if _, err := client.AckGrant(ctx, "orders", "t"); !errors.Is(err, fila.ErrLeaseExpired) {
		t.Error(err)
	}
}
