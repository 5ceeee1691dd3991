// SPDX-License-Identifier: AGPL-3.0-only

package fila_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	fila "github.com/faiscadev/fila/sdks/go"
	"github.com/faiscadev/fila/sdks/go/internal/filapb"
)

// shortLease leaves a busy machine two seconds to extend it. A lease that is overLease has ended
// before anybody can look at it.
const (
	shortLease = 4 * time.Second
	overLease  = time.Microsecond
)

// leased is a frame as the broker sends it: one token, one lease. The broker's clock is an hour
// off.
func leased(token string, lease time.Duration, ids ...string) *filapb.ConsumeResponse {
	sent := frame(ids...)
	at := time.Now().Add(-time.Hour)
	for _, message := range sent.GetMessages() {
		message.Metadata.LeaseToken = token
		message.Timestamps = &filapb.MessageTimestamps{
			LeasedAt: timestamppb.New(at), LeaseExpiresAt: timestamppb.New(at.Add(lease)),
		}
	}
	return sent
}

// asked is the extensions that a broker saw: token, those left alone, milliseconds.
func (b *broker) asked() []string {
	var found []string
	for _, call := range b.seenOf("SettleGrants") {
		for _, each := range call.request.(*filapb.SettleGrantsRequest).GetSettlements() {
			found = append(found, fmt.Sprintf("%s -%s %d", each.GetLeaseToken(),
				strings.Join(each.GetExceptMessageIds(), ","), each.GetExtend().GetExtendMs()))
		}
	}
	return found
}

func debugLog() (*safeBuffer, fila.ClientOption) {
	log := &safeBuffer{}
	handler := slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})
	return log, fila.WithLogger(slog.New(handler))
}

func TestLeasesOfWhatIsHeldAreExtended(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	b.settleGrants(nil)
	client := newClient(t, b.target)
	b.scriptConsume(frames(
		leased("a", shortLease, "a-1", "a-2", "a-3"), leased("b", shortLease, "b-1"),
		leased("c", shortLease, "c-1"),
	))
	consumer := consume(t, client)
	equal(t, "id", next(t, consumer).ID, "a-1")
	b.waitForCalls("SettleGrants", 2)
	// The third lease begins only where the first one would have ended.
	b.waitForCalls("SettleGrants", 3)
	for _, want := range []string{"a-2", "a-3", "b-1", "c-1"} {
		equal(t, "id", next(t, consumer).ID, want)
	}
	first := b.seenOf("SettleGrants")[0].request.(*filapb.SettleGrantsRequest)
	equal(t, "frames in the first request", len(first.GetSettlements()), 3)
	asked := strings.Join(b.asked(), "; ")
	for _, want := range []string{"a -a-1 4000", "b - 4000", "c - 4000"} {
		if strings.Count(asked, want) < 2 {
			t.Fatalf("%q is not in %s", want, asked)
		}
	}
}

func TestWhatWasHandedOutIsNotExtended(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	b.settleGrants(nil)
	client := newClient(t, b.target)
	b.scriptConsume(frames(
		leased("a", shortLease*3/4, "a-1"), leased("b", shortLease, "b-1", "b-2"),
	))
	consumer := consume(t, client)
	next(t, consumer)
	b.waitForCalls("SettleGrants", 1)
	for _, each := range b.asked() {
		equal(t, "extension", each, "b - 4000")
	}
	equal(t, "id", next(t, consumer).ID, "b-1")
}

func TestExtensionsThatFailAreTriedAgain(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	var attempts atomic.Int32
	b.script("SettleGrants", func(_ context.Context, _ proto.Message) (proto.Message, error) {
		if attempts.Add(1) < 3 {
			return &filapb.ItemError{Reason: filapb.ErrorReason_ERROR_REASON_SHUTTING_DOWN}, nil
		}
		return &filapb.SettleGrantsResponse{Results: []*filapb.GrantResult{{}}}, nil
	})
	client := newClient(t, b.target)
	b.scriptConsume(frames(leased("a", shortLease, "a-1")))
	consumer := consume(t, client)
	eventually(t, "it is granted", func() bool { return attempts.Load() >= 3 })
	equal(t, "id", next(t, consumer).ID, "a-1")
}

func TestNothingOfALostFrameIsHandedOut(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	b.settleGrants(map[string]filapb.ErrorReason{
		"lost": filapb.ErrorReason_ERROR_REASON_LEASE_EXPIRED,
	})
	log, logger := debugLog()
	client := newClient(t, b.target, logger)
	b.scriptConsume(frames(
		leased("lost", shortLease, "l-1", "l-2", "l-3"), leased("b", shortLease*4, "b-1"),
	))
	consumer := consume(t, client)
	equal(t, "id", next(t, consumer).ID, "l-1")
	b.waitForCalls("SettleGrants", 1)
	eventually(t, "the loss is noticed", func() bool {
		return strings.Contains(log.String(), "could not be extended")
	})
	equal(t, "id", next(t, consumer).ID, "b-1")
	if !strings.Contains(log.String(), "queue=orders count=2") {
		t.Fatalf("the log does not say how many were dropped: %s", log)
	}
	equal(t, "lines", strings.Count(log.String(), "dropped"), 1)
	check(t, consumer.Close())
	equal(t, "given back", len(b.seenOf("NackBatch")), 0)
}

func TestNothingIsHandedOutWhoseLeaseHasEnded(t *testing.T) {
	b := startBroker(t)
	log, logger := debugLog()
	client := newClient(t, b.target, logger)
	b.scriptConsume(frames(
		leased("a", overLease, "a-1", "a-2"), leased("b", time.Hour, "b-1"),
	))
	consumer := consume(t, client, fila.WithLeaseExtension(false))
	equal(t, "id", next(t, consumer).ID, "b-1")
	if !strings.Contains(log.String(), "count=2") {
		t.Fatalf("the log does not say how many were dropped: %s", log)
	}
}

func TestWhatEndedIsNotGivenBack(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	arrived := b.scriptArrivals(
		leased("token-of-b-1", time.Hour, "b-1"), leased("a", overLease, "a-1", "a-2"),
		leased("token-of-c-1", time.Hour, "c-1"),
	)
	consumer := consume(t, client)
	equal(t, "id", next(t, consumer).ID, "b-1")
	arrived(client)
	check(t, consumer.Close())
	equal(t, "given back", released(t, b), "c-1")
}

func TestWhatEndedDoesNotPileUp(t *testing.T) {
	b := startBroker(t)
	log, logger := debugLog()
	client := newClient(t, b.target, logger)
	b.scriptConsume(frames(
		leased("a", time.Hour, "a-1"), leased("b", overLease, "b-1", "b-2"),
		leased("c", overLease, "c-1"),
	))
	consumer := consume(t, client, fila.WithMaxInFlight(2), fila.WithLeaseExtension(false))
	eventually(t, "they are dropped while nobody takes anything", func() bool {
		return strings.Contains(log.String(), "dropped")
	})
	equal(t, "id", next(t, consumer).ID, "a-1")
}

func TestLeasesAreNotExtendedWhereThatIsTurnedOff(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	b.settleGrants(nil)
	client := newClient(t, b.target)
	b.scriptConsume(frames(leased("off", shortLease/4, "m-1")))
	consume(t, client, fila.WithLeaseExtension(false))
	b.waitForCalls("Consume", 1)
	b.scriptConsume(frames(leased("on", shortLease, "m-2")))
	consume(t, client)
	b.waitForCalls("SettleGrants", 1)
	equal(t, "extension", b.asked()[0], "on - 4000")
}

func TestLeasesAreExtendedWithoutGrants(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	b.scriptPipelines(unknown)
	b.script("ExtendLease", func(_ context.Context, r proto.Message) (proto.Message, error) {
		answer := &filapb.ExtendLeaseResponse{}
		for _, each := range r.(*filapb.ExtendLeaseRequest).GetExtensions() {
			result := &filapb.ExtendLeaseResult{}
			if each.GetMessageId() == "a-2" {
				result.Error = &filapb.ItemError{
					Reason: filapb.ErrorReason_ERROR_REASON_LEASE_EXPIRED,
				}
			}
			answer.Results = append(answer.Results, result)
		}
		return answer, nil
	})
	client := newClient(t, b.target)
	b.scriptConsume(frames(
		leased("a", shortLease, "a-1", "a-2", "a-3"), leased("b", shortLease, "b-1"),
	))
	consumer := consume(t, client)
	equal(t, "id", next(t, consumer).ID, "a-1")
	calls := b.waitForCalls("ExtendLease", 2)
	equal(t, "asked for grants", len(b.seenOf("SettleGrants")), 1)
	named := func(call seen) string {
		var ids []string
		for _, each := range call.request.(*filapb.ExtendLeaseRequest).GetExtensions() {
			equal(t, "milliseconds", each.GetExtendMs(), 4000)
			ids = append(ids, each.GetLeaseToken()+":"+each.GetMessageId())
		}
		return strings.Join(ids, " ")
	}
	equal(t, "first", len(strings.Fields(named(calls[0]))), 3)
	if strings.Contains(named(calls[1]), "a-2") {
		t.Fatal("a message whose lease ended is extended")
	}
	equal(t, "id", next(t, consumer).ID, "a-3")
	equal(t, "id", next(t, consumer).ID, "b-1")
}

func TestWhatWasReadStaysValidWhenTheStreamIsLost(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	b.settleGrants(nil)
	client := newClient(t, b.target, quick)
	var streams atomic.Int32
	b.scriptConsume(func(stream grpc.ServerStream, r *filapb.ConsumeRequest) error {
		if streams.Add(1) > 1 {
			return frames(leased("b", time.Hour, "b-1"))(stream, r)
		}
		if err := stream.SendMsg(leased("a", shortLease, "a-1")); err != nil {
			return err
		}
		return status.Error(codes.Unavailable, "going away")
	})
	consumer := consume(t, client)
	b.waitForCalls("SettleGrants", 2)
	equal(t, "id", next(t, consumer).ID, "a-1")
	equal(t, "id", next(t, consumer).ID, "b-1")
}

func TestClosingForgetsWhatIsHeld(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	b.settleGrants(nil)
	client := newClient(t, b.target)
	arrived := b.scriptArrivals(leased("token-of-a-1", shortLease*3/4, "a-1"))
	gone := consume(t, client)
	arrived(client)
	check(t, gone.Close())
	equal(t, "given back", released(t, b), "a-1")
	b.scriptConsume(frames(leased("b", shortLease, "b-1")))
	consume(t, client)
	b.waitForCalls("SettleGrants", 1)
	equal(t, "extension", b.asked()[0], "b - 4000")
}
