// SPDX-License-Identifier: AGPL-3.0-only

// Leases of what a client holds, frame by frame: how long they last, and that they are extended in
// time.
//
// A frame is a grant: its messages share a token, and one end. A frame of which something is held
// is extended half a lease before that end, for as long again. One timer serves all frames of a
// client, and what is due at a moment shares a request:
//
//	arrival --half a lease--> due --> asked --> extended: due again half a lease after it was asked
//	                           ^        |
//	                           '--wait--+-- the request failed, and the lease goes on
//	                                    '-- refused, or the lease ended meanwhile: lost
//
// The broker's clock is not ours. A lease's length is the difference of two of its times, and its
// end is counted from the frame's arrival, or from when an extension was asked for.

package fila

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/faiscadev/fila/sdks/go/internal/filapb"
)

// After a request that failed the next one waits this long, or a tenth of the lease if that is
// less: several attempts fit into the half of a lease that is left.
const extensionPause = time.Second

// What is due within this part of its lease is asked for along with what is due now: frames that
// arrived one after the other share their requests.
const gatheredPart = 20

// frame is messages that came together.
type frame struct {
	size int
	// The others are zero where nobody counts the lease: of what Client.Receive returned.
	queue  string
	token  string
	ids    []string
	length time.Duration
	// keeper is nil where leases are not extended.
	keeper *keeper

	lock sync.Mutex
	// isHeld says of each message whether its lease is kept; held is how many are.
	isHeld []bool
	held   int
	isLost bool
	// endsAt is zero where the broker did not say how long the lease lasts.
	endsAt time.Time
	// From mayAskAt on it goes along with others, at dueAt it goes.
	mayAskAt time.Time
	dueAt    time.Time
	// isAsked is true while a request to extend it is under way.
	isAsked bool
}

// newFrame is the frame of messages that arrived together, of which there is at least one.
func newFrame(messages []*filapb.Message, arrivedAt time.Time, kept *keeper) *frame {
	f := &frame{
		size:   len(messages),
		ids:    make([]string, len(messages)),
		held:   len(messages),
		isHeld: make([]bool, len(messages)),
	}
	first := messages[0]
	f.queue, f.token = first.GetMetadata().GetQueueId(), first.GetMetadata().GetLeaseToken()
	for i, message := range messages {
		f.isHeld[i] = true
		f.ids[i] = message.GetId()
	}
	times := first.GetTimestamps()
	if times.GetLeasedAt() == nil || times.GetLeaseExpiresAt() == nil {
		return f
	}
	f.length = times.GetLeaseExpiresAt().AsTime().Sub(times.GetLeasedAt().AsTime())
	f.count(arrivedAt)
	if f.length > 0 {
		f.keeper = kept
	}
	return f
}

// count begins a lease at that time.
func (f *frame) count(from time.Time) {
	f.endsAt, f.dueAt = from.Add(f.length), from.Add(f.length/2)
	f.mayAskAt = f.dueAt.Add(-f.length / gatheredPart)
}

// isAlive says whether its messages may still be handed out.
func (f *frame) isAlive(now time.Time) bool {
	f.lock.Lock()
	defer f.lock.Unlock()
	return f.isAliveLocked(now)
}

func (f *frame) isAliveLocked(now time.Time) bool {
	return !f.isLost && (f.endsAt.IsZero() || now.Before(f.endsAt))
}

// handOut says whether one message may be handed out, which may have been lost alone, and releases
// it unless it stays held.
func (f *frame) handOut(place int, now time.Time, staysHeld bool) bool {
	f.lock.Lock()
	isFine, isLast := f.isHeld[place] && f.isAliveLocked(now), false
	if isFine && !staysHeld {
		isLast = f.releaseLocked(place)
	}
	f.lock.Unlock()
	f.forgetIf(isLast)
	return isFine
}

// release ends the keeping of one message's lease. With the last one the frame is forgotten.
func (f *frame) release(place int) {
	f.lock.Lock()
	isLast := f.releaseLocked(place)
	f.lock.Unlock()
	f.forgetIf(isLast)
}

func (f *frame) releaseLocked(place int) (isLast bool) {
	if !f.isHeld[place] {
		return false
	}
	f.isHeld[place] = false
	f.held--
	return f.held == 0
}

// forgetIf is called without the frame's lock: the keeper takes its own before those of frames.
func (f *frame) forgetIf(isOver bool) {
	if isOver && f.keeper != nil {
		f.keeper.forget(f)
	}
}

// lose ends the keeping of the frame: nothing of it is handed out any more.
func (f *frame) lose() {
	f.lock.Lock()
	f.isLost = true
	f.lock.Unlock()
	f.forgetIf(true)
}

// ask says whether the frame may be asked for, and takes it for a request.
func (f *frame) ask(now time.Time) bool {
	f.lock.Lock()
	defer f.lock.Unlock()
	isDue := !f.isAsked && f.held > 0 && !now.Before(f.mayAskAt)
	f.isAsked = f.isAsked || isDue
	return isDue
}

// extended is told what became of a request: when it was sent if it was granted.
func (f *frame) extended(sentAt time.Time) {
	f.lock.Lock()
	defer f.lock.Unlock()
	f.isAsked = false
	f.count(sentAt)
}

func (f *frame) postpone(now time.Time) {
	f.lock.Lock()
	defer f.lock.Unlock()
	f.isAsked = false
	f.dueAt = now.Add(min(extensionPause, f.length/10))
	f.mayAskAt = f.dueAt
}

// places is where the messages are that are held.
func (f *frame) places() []int {
	f.lock.Lock()
	defer f.lock.Unlock()
	var held []int
	for place, isHeld := range f.isHeld {
		if isHeld {
			held = append(held, place)
		}
	}
	return held
}

// others is the ids of the messages that are not held.
func (f *frame) others() []string {
	f.lock.Lock()
	defer f.lock.Unlock()
	var ids []string
	for place, isHeld := range f.isHeld {
		if !isHeld {
			ids = append(ids, f.ids[place])
		}
	}
	return ids
}

// keeper extends the leases of a client's frames.
type keeper struct {
	connection *connection

	lock   sync.Mutex
	frames map[*frame]struct{}
	timer  *time.Timer
	// wakesAt is when the timer fires; zero when it does not.
	wakesAt   time.Time
	isStopped bool
}

func newKeeper(c *connection) *keeper {
	k := &keeper{connection: c, frames: map[*frame]struct{}{}}
	k.timer = time.AfterFunc(time.Hour, k.wake)
	k.timer.Stop()
	return k
}

// keep extends the frame's lease from now on, as long as something of it is held.
func (k *keeper) keep(f *frame) {
	k.lock.Lock()
	defer k.lock.Unlock()
	k.frames[f] = struct{}{}
	k.wakeAtLocked(f.dueAt)
}

func (k *keeper) forget(f *frame) {
	k.lock.Lock()
	defer k.lock.Unlock()
	delete(k.frames, f)
}

func (k *keeper) stop() {
	k.lock.Lock()
	defer k.lock.Unlock()
	k.isStopped = true
	k.timer.Stop()
}

func (k *keeper) wakeAtLocked(at time.Time) {
	if !k.isStopped && (k.wakesAt.IsZero() || at.Before(k.wakesAt)) {
		k.wakesAt = at
		k.timer.Reset(time.Until(at))
	}
}

// wake asks for what is due, and sets the timer for what will be.
func (k *keeper) wake() {
	now := time.Now()
	k.lock.Lock()
	defer k.lock.Unlock()
	k.wakesAt = time.Time{}
	var due []*frame
	for f := range k.frames {
		switch {
		case !f.isAlive(now):
			delete(k.frames, f)
		case f.ask(now):
			due = append(due, f)
		default:
			k.lookAtLocked(f)
		}
	}
	if len(due) > 0 && !k.isStopped {
		go k.extend(due)
	}
}

// lookAtLocked has the timer fire for a frame. What is asked for comes back when that is answered.
func (k *keeper) lookAtLocked(f *frame) {
	f.lock.Lock()
	at, isAsked := f.dueAt, f.isAsked
	f.lock.Unlock()
	if !isAsked {
		k.wakeAtLocked(at)
	}
}

// extend extends frames by their tokens, in as few requests as the broker's limit allows, which
// counts the messages that are left alone, too: those that were handed out are the application's.
func (k *keeper) extend(frames []*frame) {
	if k.connection.hasNoGrants.Load() {
		k.extendSingly(frames)
		return
	}
	var items []item
	count, first := 0, 0
	for at, f := range frames {
		others := f.others()
		if at > first && count+1+len(others) > batchItemsMax {
			k.send(frames[first:at], items)
			items, count, first = nil, 0, at
		}
		request := grantSettlement(f.queue, f.token, others)
		request.Action = &filapb.GrantSettlement_Extend{Extend: &filapb.GrantExtension{
			ExtendMs: uint64(f.length.Milliseconds()),
		}}
		// What the broker sent can be sent back.
		what, _ := newItem(request, subject{queue: f.queue})
		items = append(items, what)
		count += 1 + len(others)
	}
	k.send(frames[first:], items)
}

// send sends one request and tells the frames of it.
func (k *keeper) send(frames []*frame, items []item) {
	ctx, cancel := k.deadline(frames)
	defer cancel()
	sentAt := time.Now()
	answers, err := grantBatch(ctx, k.connection, items, nil)
	if errors.Is(err, ErrUnimplemented) {
		k.connection.hasNoGrants.Store(true)
		k.extendSingly(frames)
		return
	}
	for i, f := range frames {
		switch {
		case err != nil:
			f.postpone(time.Now())
		case answers[i].err != nil:
			f.lose()
			k.report(f, answers[i].err)
		default:
			f.extended(sentAt)
		}
	}
	k.lookAt(frames)
}

// extendSingly names each message, for brokers that know no grants. A message that is refused, as
// its lease ended alone or it was settled, is released alone.
func (k *keeper) extendSingly(frames []*frame) {
	type owner struct {
		frame *frame
		place int
	}
	var items []item
	var owners []owner
	for _, f := range frames {
		for _, place := range f.places() {
			what, _ := extendItem(subject{f.queue, f.ids[place]}, f.token, f.length)
			_ = what.encode() // What the broker sent can be sent back.
			items, owners = append(items, what), append(owners, owner{f, place})
		}
	}
	ctx, cancel := k.deadline(frames)
	defer cancel()
	sentAt := time.Now()
	hasFailed := map[*frame]bool{}
	for len(items) > 0 {
		count := firstBatch(items)
		answers, err := extendBatch(ctx, k.connection, items[:count], nil)
		for i, of := range owners[:count] {
			switch {
			case err != nil:
				hasFailed[of.frame] = true
			case answers[i].err != nil:
				of.frame.release(of.place)
				k.report(of.frame, answers[i].err)
			}
		}
		items, owners = items[count:], owners[count:]
	}
	for _, f := range frames {
		if hasFailed[f] {
			f.postpone(time.Now())
		} else {
			f.extended(sentAt)
		}
	}
	k.lookAt(frames)
}

// deadline is no later than the leases' ends: afterwards nobody needs the answer.
func (k *keeper) deadline(frames []*frame) (context.Context, context.CancelFunc) {
	var latest time.Time
	for _, f := range frames {
		f.lock.Lock()
		if f.endsAt.After(latest) {
			latest = f.endsAt
		}
		f.lock.Unlock()
	}
	timeout := min(k.connection.timeout, time.Until(latest))
	return context.WithTimeout(k.connection.alive, timeout)
}

func (k *keeper) report(f *frame, err error) {
	k.connection.logger.Debug("lease could not be extended", "queue", f.queue, "error", err)
}

// lookAt has the timer fire again for frames that were asked for, unless they were forgotten.
func (k *keeper) lookAt(frames []*frame) {
	k.lock.Lock()
	defer k.lock.Unlock()
	for _, f := range frames {
		if _, isKept := k.frames[f]; isKept {
			k.lookAtLocked(f)
		}
	}
}
