// SPDX-License-Identifier: AGPL-3.0-only

// Concurrent calls of one client share batch requests. Nothing lingers.
//
// A few requests may be under way at a time. A call that finds a free slot goes out at once, alone;
// calls that find none wait, and the next free slot takes all of them, within a batch's limits. So
// batches grow only because calls piled up while the broker was busy with earlier ones.
//
// A request belongs to none of its callers: it runs on a goroutine of its own until the latest of
// their deadlines. A caller that gives up leaves the others undisturbed; the last one to do so
// cancels the request.

package fila

import (
	"container/list"
	"context"
	"sync"
	"time"
)

// Two keep the broker busy while an answer is on its way; with more, batches get smaller.
const requestsUnderWayMax = 2

const inLine = "while earlier requests were under way; this one was not sent"

// seat is one caller. All but done is guarded by the coalescer's lock.
type seat[R any] struct {
	item     item
	deadline time.Time
	trace    map[string]string
	// place is where it waits; nil once it is part of a request.
	place *list.Element
	// request is what it is part of; nil while it waits.
	request *request[R]
	// done takes its outcome without blocking, whether or not the caller is still there.
	done chan outcome[R]
}

// request is one batch under way.
type request[R any] struct {
	seats []*seat[R]
	// callers is how many of them still wait for the answer.
	callers int
	ctx     context.Context
	cancel  context.CancelFunc
}

// coalescer batches the items of concurrent callers for one RPC.
type coalescer[R any] struct {
	send       batch[R]
	connection *connection
	room       *room

	lock sync.Mutex
	// waiting holds *seat[R]. Nobody waits while a slot is free.
	waiting   *list.List
	freeSlots int
}

func newCoalescer[R any](send batch[R], c *connection, shared *room) *coalescer[R] {
	return &coalescer[R]{
		send: send, connection: c, room: shared,
		waiting: list.New(), freeSlots: requestsUnderWayMax,
	}
}

// submit sends one item, with others if there are any, and encodes it when there is room for it.
// The context must have a deadline. Fails with the item's error, or the request's.
func (c *coalescer[R]) submit(ctx context.Context, what *item) (R, error) {
	var none R
	if c.connection.isClosed() {
		return none, clientClosed(what.about)
	}
	if ctx.Err() != nil {
		return none, ended(ctx, beforeSent, what.about)
	}
	if err := c.room.enter(ctx, c.connection.alive.Done(), what); err != nil {
		return none, err
	}
	if what.data == nil {
		if err := what.encode(); err != nil {
			c.room.leave(what.size)
			return none, err
		}
	}
	deadline, _ := ctx.Deadline()
	mine := &seat[R]{
		item: *what, deadline: deadline, trace: traceOf(ctx), done: make(chan outcome[R], 1),
	}
	c.lock.Lock()
	if c.freeSlots > 0 {
		c.freeSlots--
		go c.serve(c.begin([]*seat[R]{mine}))
	} else {
		mine.place = c.waiting.PushBack(mine)
	}
	c.lock.Unlock()

	select {
	case found := <-mine.done:
		return found.value, found.err
	case <-ctx.Done():
		return c.leave(ctx, mine)
	}
}

// leave takes a caller out whose context is over.
func (c *coalescer[R]) leave(ctx context.Context, mine *seat[R]) (R, error) {
	c.lock.Lock()
	defer c.lock.Unlock()
	var none R
	if mine.place != nil {
		c.waiting.Remove(mine.place)
		c.room.leave(mine.item.size)
		return none, ended(ctx, inLine, mine.item.about)
	}
	select {
	case found := <-mine.done: // The answer was faster.
		return found.value, found.err
	default:
	}
	mine.request.callers--
	if mine.request.callers == 0 {
		mine.request.cancel()
	}
	return none, ended(ctx, beforeAnswer, mine.item.about)
}

// serve sends a request, and then whatever has piled up, until nobody waits.
func (c *coalescer[R]) serve(next *request[R]) {
	for next != nil {
		c.settle(next)
		c.lock.Lock()
		next = c.take()
		c.lock.Unlock()
	}
}

func (c *coalescer[R]) settle(r *request[R]) {
	defer r.cancel()
	items := make([]item, len(r.seats))
	for i, each := range r.seats {
		items[i] = each.item
	}
	// A request can carry one trace; each message has its own in its headers.
	found, err := c.send(r.ctx, c.connection, items, r.seats[0].trace)
	if err != nil {
		found = failed(found, items, err)
	}
	for i, each := range r.seats {
		each.done <- found[i]
	}
}

// take is the next request; nil, and a free slot, when nobody waits. The lock is held.
func (c *coalescer[R]) take() *request[R] {
	var seats []*seat[R]
	size := 0
	for front := c.waiting.Front(); front != nil; front = c.waiting.Front() {
		each := front.Value.(*seat[R])
		if !fits(len(seats), size, each.item) {
			break
		}
		c.waiting.Remove(front)
		size += len(each.item.data)
		seats = append(seats, each)
	}
	if len(seats) == 0 {
		c.freeSlots++
		return nil
	}
	return c.begin(seats)
}

// begin makes a request of callers. The lock is held.
func (c *coalescer[R]) begin(seats []*seat[R]) *request[R] {
	started := &request[R]{seats: seats, callers: len(seats)}
	latest, size := seats[0].deadline, 0
	for _, each := range seats {
		size += each.item.size
		each.place, each.request = nil, started
		if each.deadline.After(latest) {
			latest = each.deadline
		}
	}
	c.room.leave(size)
	started.ctx, started.cancel = context.WithDeadline(c.connection.alive, latest)
	return started
}
