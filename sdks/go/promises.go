// SPDX-License-Identifier: AGPL-3.0-only

// What a client was given to send: how much of it may wait, and when all of it is answered.
//
// Every enqueue, ack, nack and extension is counted from its beginning to its answer, retries and
// all. Calls belong to generations. A flush ends the present one, so that calls which begin later
// belong to the next, and waits for it and those before it.

package fila

import (
	"container/list"
	"context"
	"errors"
	"sync"

	"google.golang.org/grpc/codes"
)

// promises counts the calls of a client that have begun and were not answered.
type promises struct {
	lock sync.Mutex
	// present takes the calls that begin, over is earlier generations with calls under way.
	present   *generation
	over      map[*generation]struct{}
	isRefused bool
}

type generation struct {
	calls  int
	isOver bool
	// done is closed when it is over and all of its calls were answered.
	done chan struct{}
}

func newPromises() *promises {
	return &promises{present: newGeneration(), over: map[*generation]struct{}{}}
}

func newGeneration() *generation { return &generation{done: make(chan struct{})} }

// begin counts a call, which has to end; nil when there are no new calls.
func (p *promises) begin() *generation {
	p.lock.Lock()
	defer p.lock.Unlock()
	if p.isRefused {
		return nil
	}
	p.present.calls++
	return p.present
}

func (p *promises) end(its *generation) {
	p.lock.Lock()
	defer p.lock.Unlock()
	if its.calls--; its.calls == 0 && its.isOver {
		delete(p.over, its)
		close(its.done)
	}
}

// refuse has no more calls begin.
func (p *promises) refuse() {
	p.lock.Lock()
	defer p.lock.Unlock()
	p.isRefused = true
}

// wait waits until all calls that have begun are answered, or for the context.
func (p *promises) wait(ctx context.Context) error {
	for _, each := range p.turn() {
		select {
		case <-each.done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// turn ends the present generation, and returns those with calls under way.
func (p *promises) turn() []*generation {
	p.lock.Lock()
	defer p.lock.Unlock()
	if p.present.calls > 0 {
		p.present.isOver = true
		p.over[p.present] = struct{}{}
		p.present = newGeneration()
	}
	waiting := make([]*generation, 0, len(p.over))
	for each := range p.over {
		waiting = append(waiting, each)
	}
	return waiting
}

// Flush waits until every enqueue, ack, nack and extension that was begun before it is answered,
// whatever the answer: what went wrong is the error of that call. Without a deadline in the context
// it has the client's timeout; fails with ErrDeadlineExceeded when that is not enough.
func (c *Client) Flush(ctx context.Context) error {
	if c.connection.isRefusing() {
		return clientClosed(subject{})
	}
	ctx, cancel := c.connection.withDeadline(ctx, 0)
	defer cancel()
	err := c.promises.wait(ctx)
	if err == nil {
		return nil
	}
	if errors.Is(err, context.DeadlineExceeded) {
		text := "the deadline passed before all calls were answered"
		return newError(ErrDeadlineExceeded, codes.DeadlineExceeded, text, subject{}, err)
	}
	return newError(ErrCanceled, codes.Canceled, "canceled while flushing", subject{}, err)
}

// room is the bytes that single calls may have waiting to be sent. Who finds none waits in line.
type room struct {
	max int

	lock sync.Mutex
	used int
	// line holds *newcomer.
	line *list.List
}

type newcomer struct {
	size int
	// admitted is closed when it may come in.
	admitted chan struct{}
}

func newRoom(limit int) *room { return &room{max: limit, line: list.New()} }

const inRoom = "while too much was waiting to be sent; this one was not sent"

// enter takes room, as much as it waits for. Whatever is larger than all of it has it alone.
func (r *room) enter(ctx context.Context, alive <-chan struct{}, what *item) error {
	r.lock.Lock()
	if r.line.Len() == 0 && r.fitsLocked(what.size) {
		r.used += what.size
		r.lock.Unlock()
		return nil
	}
	mine := &newcomer{what.size, make(chan struct{})}
	place := r.line.PushBack(mine)
	r.lock.Unlock()
	select {
	case <-mine.admitted:
		return nil
	case <-ctx.Done():
		r.giveUp(place)
		return ended(ctx, inRoom, what.about)
	case <-alive:
		r.giveUp(place)
		return clientClosed(what.about)
	}
}

func (r *room) fitsLocked(size int) bool { return r.used == 0 || r.used+size <= r.max }

// leave returns room that was taken, and lets in whom there is room for then.
func (r *room) leave(size int) {
	r.lock.Lock()
	defer r.lock.Unlock()
	r.used -= size
	r.admitLocked()
}

func (r *room) admitLocked() {
	for front := r.line.Front(); front != nil; front = r.line.Front() {
		first := front.Value.(*newcomer)
		if !r.fitsLocked(first.size) {
			return
		}
		r.used += first.size
		r.line.Remove(front)
		close(first.admitted)
	}
}

// giveUp takes somebody out of the line, or the room, who waits no longer.
func (r *room) giveUp(place *list.Element) {
	r.lock.Lock()
	defer r.lock.Unlock()
	mine := place.Value.(*newcomer)
	select {
	case <-mine.admitted:
		r.used -= mine.size
	default:
		r.line.Remove(place)
	}
	r.admitLocked() // It may have been what held up those behind it.
}
