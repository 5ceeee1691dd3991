// SPDX-License-Identifier: AGPL-3.0-only

// Whole frames: what is acked together, and came together, travels as one settlement of a grant.
//
// A grant is what one delivery frame leases; its messages share a lease token. Acks of all of them
// are the same as one settlement that expects exactly so many. Where the broker refuses that, since
// some were settled before or their leases ended, each goes as an ack of its own and gets its own
// answer. So nobody can tell the two ways apart, but for what they cost.

package fila

import (
	"context"
	"errors"
	"time"

	"github.com/faiscadev/fila/sdks/go/internal/filapb"
)

// settled is how many messages were settled, and when extended leases end.
type settled struct {
	messages int
	end      time.Time
}

// AckGrant acks what is left of a grant, which is all messages that were delivered under one lease
// token, but for those that are to be left alone. It returns how many were acked, and fails with
// ErrLeaseExpired when none is left.
func (c *Client) AckGrant(
	ctx context.Context, queue, leaseToken string, exceptMessageIDs ...string,
) (int, error) {
	request := grantSettlement(queue, leaseToken, exceptMessageIDs)
	request.Action = &filapb.GrantSettlement_Ack{Ack: &filapb.GrantAck{}}
	done, err := c.settleGrant(ctx, request)
	return done.messages, err
}

// NackGrant nacks what is left of a grant, each message as Nack would, but for those that are to be
// left alone. With WithRetryAfter(0) they are given back unseen. Fails as AckGrant does.
func (c *Client) NackGrant(
	ctx context.Context, queue, leaseToken, why string, exceptMessageIDs []string,
	options ...NackOption,
) (int, error) {
	var chosen nackSettings
	for _, option := range options {
		option(&chosen)
	}
	nack := &filapb.GrantNack{
		Error: why, ThrottleKey: chosen.throttleKey, DeadLetter: chosen.isDeadLetter,
	}
	if chosen.hasRetryAfter {
		retryAfterMS, err := milliseconds("retry after", chosen.retryAfter, subject{queue: queue})
		if err != nil {
			return 0, err
		}
		nack.RetryAfterMs = &retryAfterMS
	}
	request := grantSettlement(queue, leaseToken, exceptMessageIDs)
	request.Action = &filapb.GrantSettlement_Nack{Nack: nack}
	done, err := c.settleGrant(ctx, request)
	return done.messages, err
}

// ExtendGrant makes the leases of what is left of a grant last that long from now, but for those
// that are to be left alone, and returns their new end; 0 takes the queue's visibility timeout.
// Fails as AckGrant does.
func (c *Client) ExtendGrant(
	ctx context.Context, queue, leaseToken string, lease time.Duration, exceptMessageIDs ...string,
) (time.Time, error) {
	extendMS, err := milliseconds("lease", lease, subject{queue: queue})
	if err != nil {
		return time.Time{}, err
	}
	request := grantSettlement(queue, leaseToken, exceptMessageIDs)
	request.Action = &filapb.GrantSettlement_Extend{
		Extend: &filapb.GrantExtension{ExtendMs: extendMS},
	}
	done, err := c.settleGrant(ctx, request)
	return done.end, err
}

func grantSettlement(queue, leaseToken string, except []string) *filapb.GrantSettlement {
	return &filapb.GrantSettlement{
		Queue: queue, LeaseToken: leaseToken, ExceptMessageIds: except,
	}
}

func (c *Client) settleGrant(
	ctx context.Context, request *filapb.GrantSettlement,
) (settled, error) {
	what, err := newItem(request, subject{queue: request.GetQueue()})
	if err != nil {
		return settled{}, err
	}
	its := c.promises.begin()
	if its == nil {
		return settled{}, clientClosed(what.about)
	}
	defer c.promises.end(its)
	found := sendMany(ctx, c.connection, grantBatch, []item{what})
	return found[0].value, found[0].err
}

func grantBatch(
	ctx context.Context, c *connection, items []item, trace map[string]string,
) ([]outcome[settled], error) {
	request := &filapb.SettleGrantsRequest{}
	join(request, items)
	wrapped := &filapb.PipelineRequest{Call: &filapb.PipelineRequest_Settle{Settle: request}}
	answer, err := carry(ctx, c.settlements, c.service.SettleGrants, request, trace,
		wrapped, (*filapb.PipelineResponse).GetSettle)
	if err != nil {
		return nil, err
	}
	return outcomes(answer.GetResults(), items, func(result *filapb.GrantResult) settled {
		return settled{int(result.GetMessages()), moment(result.GetLeaseExpiresAt())}
	})
}

// ackTogether sends acks that share a request, whole frames of them by their grants.
func ackTogether(
	ctx context.Context, c *connection, items []item, trace map[string]string,
) ([]outcome[struct{}], error) {
	return ackFrames(c, items,
		func(grants []item) ([]outcome[settled], error) {
			return grantBatch(ctx, c, grants, trace)
		},
		func(acks []item) ([]outcome[struct{}], error) {
			return ackBatch(ctx, c, acks, trace)
		},
	)
}

// ackMany sends any number of acks, whole frames of them by their grants.
func ackMany(ctx context.Context, c *connection, items []item) []outcome[struct{}] {
	found, err := ackFrames(c, items,
		func(grants []item) ([]outcome[settled], error) {
			return sendAll(ctx, c, grantBatch, grants)
		},
		func(acks []item) ([]outcome[struct{}], error) {
			return sendMany(ctx, c, ackBatch, acks), nil
		},
	)
	if err != nil {
		return failed[struct{}](nil, items, err)
	}
	return found
}

// ackFrames settles whole frames first, and then acks what is left. An error is that of a request,
// and so of every item.
func ackFrames(
	c *connection, items []item,
	settle func([]item) ([]outcome[settled], error),
	ack func([]item) ([]outcome[struct{}], error),
) ([]outcome[struct{}], error) {
	frames := c.wholeFrames(items)
	if len(frames) == 0 {
		return ack(items)
	}
	grants := make([]item, len(frames))
	for i, places := range frames {
		grant, err := frameItem(items[places[0]], len(places))
		if err != nil {
			return nil, err
		}
		grants[i] = grant
	}
	answers, err := settle(grants)
	if errors.Is(err, ErrUnimplemented) {
		c.hasNoGrants.Store(true)
		return ack(items)
	}
	if err != nil {
		return nil, err
	}
	found := make([]outcome[struct{}], len(items))
	isOpen := make([]bool, len(items))
	for i := range items {
		isOpen[i] = true
	}
	for i, places := range frames {
		if errors.Is(answers[i].err, ErrLeaseExpired) {
			for _, at := range places {
				items[at].wasSent = items[at].wasSent || answers[i].wasSent
			}
			continue
		}
		for _, at := range places {
			isOpen[at] = false
			if answers[i].err != nil {
				found[at].err = named(answers[i].err, items[at].about)
			}
		}
	}
	ackOpen(items, isOpen, found, ack)
	return found, nil
}

// ackOpen acks the items that are open, and fills in what became of them.
func ackOpen(
	items []item, isOpen []bool, found []outcome[struct{}],
	ack func([]item) ([]outcome[struct{}], error),
) {
	var rest []item
	var places []int
	for at, each := range items {
		if isOpen[at] {
			rest, places = append(rest, each), append(places, at)
		}
	}
	if len(rest) == 0 {
		return
	}
	answers, err := ack(rest)
	if err != nil { // Frames were settled before: it is that of the others alone.
		answers = failed[struct{}](nil, rest, err)
	}
	for i, at := range places {
		found[at] = answers[i]
	}
}

// wholeFrames is where the items are that make up whole frames, frame by frame.
func (c *connection) wholeFrames(items []item) [][]int {
	if c.hasNoGrants.Load() {
		return nil
	}
	type grant struct{ queue, token string }
	var order []grant
	places := map[grant][]int{}
	for at, each := range items {
		if each.frameSize > 1 && each.leaseToken != "" {
			key := grant{each.about.queue, each.leaseToken}
			if places[key] == nil {
				order = append(order, key)
			}
			places[key] = append(places[key], at)
		}
	}
	var frames [][]int
	for _, key := range order {
		if isWhole(items, places[key]) {
			frames = append(frames, places[key])
		}
	}
	return frames
}

func isWhole(items []item, places []int) bool {
	if len(places) != items[places[0]].frameSize {
		return false
	}
	ids := make(map[string]struct{}, len(places))
	for _, at := range places {
		ids[items[at].about.messageID] = struct{}{}
	}
	return len(ids) == len(places)
}

// frameItem stands for the acks of a frame.
func frameItem(first item, count int) (item, error) {
	request := grantSettlement(first.about.queue, first.leaseToken, nil)
	request.ExpectedMessages = uint32(count)
	request.Action = &filapb.GrantSettlement_Ack{Ack: &filapb.GrantAck{}}
	what, err := newItem(request, subject{queue: first.about.queue})
	what.isRepeatable = true
	return what, err
}
