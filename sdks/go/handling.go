// SPDX-License-Identifier: AGPL-3.0-only

// The handling of one message of a worker, or of one batch: it runs the handler, decides what its
// outcome is, and settles that.
//
//	running --the handler returned---> its outcome
//	        --its timeout passed-----> a failure         the handler may go on; nobody asks it
//	        --the grace ended--------> given back
//
// Whatever comes first decides, and it alone. Settling has a context of its own: that of the
// handler may have ended, and that of the worker has when it stops.

package fila

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"
)

// The broker keeps so much of what a nack says.
const reasonBytesMax = 4 << 10

// errExited is the outcome of a handler that called runtime.Goexit.
var errExited = errors.New("the handler ended its goroutine")

// Backpressure is returned by a handler that should have been asked later: the message comes back
// after that time, and no attempt is counted.
type Backpressure struct {
	RetryAfter time.Duration
	// ThrottleKey lets nothing through that has this throttle key, for anybody, until then; empty
	// for the message alone.
	ThrottleKey string
	Reason      string
}

func (b *Backpressure) Error() string {
	return strings.TrimSuffix(fmt.Sprintf("try again in %v: %s", b.RetryAfter, b.Reason), ": ")
}

// DeadLetter is returned by a handler that knows that trying again would not help: the message
// becomes a dead letter, whatever attempts are left.
type DeadLetter struct {
	Reason string
}

func (d *DeadLetter) Error() string { return "hopeless: " + d.Reason }

// EventKind is a kind of event.
type EventKind string

// The kinds. EventTimedOut comes besides the EventNacked of the same message.
const (
	EventAcked        EventKind = "acked"
	EventNacked       EventKind = "nacked"
	EventDeadLettered EventKind = "dead_lettered"
	EventPutOff       EventKind = "put_off"
	EventGivenBack    EventKind = "given_back"
	EventTimedOut     EventKind = "timed_out"
	EventSettleFailed EventKind = "settle_failed"
)

// Event is something that became of a message in a worker; of a batch each message has its own.
type Event struct {
	Kind    EventKind
	Message *ConsumeMessage
	// Duration is how long it was handled.
	Duration time.Duration
	// Err is what the handler failed with, or the settlement if that failed.
	Err error
}

// handling is one call of the handler.
type handling struct {
	worker   *Worker
	messages []*ConsumeMessage
	beganAt  time.Time
	// isDecided says that there is an outcome, and took how long that took.
	isDecided atomic.Bool
	took      time.Duration
}

// verdict is how messages are settled.
type verdict struct {
	kind EventKind
	err  error
	// why and options are of the nack.
	why     string
	options []NackOption
}

// process handles messages, and returns when the handler does.
func (w *Worker) process(ctx context.Context, messages []*ConsumeMessage) {
	h := &handling{worker: w, messages: messages, beganAt: time.Now()}
	var cancel context.CancelFunc
	if w.chosen.handlerTimeout > 0 {
		ctx, cancel = context.WithTimeout(ctx, w.chosen.handlerTimeout)
	} else {
		ctx, cancel = context.WithCancel(ctx)
	}
	defer cancel()
	stop := context.AfterFunc(ctx, func() { h.cut(ctx) })
	inSpan, endSpans := startSpans(ctx, messages)
	err := errExited
	defer func() {
		stop()
		w.guard("tracing", func() { endSpans(err) })
		if err != nil && ctx.Err() != nil {
			h.cut(ctx)
		} else if h.decide() {
			w.settling <- struct{}{}
			go h.settle(verdictOf(err))
		}
	}()
	err = w.call(inSpan, messages)
}

// startSpans starts one for each message; that of the first is the active one.
func startSpans(
	ctx context.Context, messages []*ConsumeMessage,
) (context.Context, func(error)) {
	inSpan, endFirst := StartProcessing(ctx, messages[0])
	if len(messages) == 1 {
		return inSpan, endFirst
	}
	ends := []func(error){endFirst}
	for _, message := range messages[1:] {
		_, end := StartProcessing(ctx, message)
		ends = append(ends, end)
	}
	return inSpan, func(err error) {
		for _, end := range ends {
			end(err)
		}
	}
}

// call makes a failure of a panic.
func (w *Worker) call(ctx context.Context, messages []*ConsumeMessage) (err error) {
	defer func() {
		if panicked := recover(); panicked != nil {
			err = fmt.Errorf("panic: %v", panicked)
			w.client.connection.logger.Error("handler panicked", "queue", w.queue,
				"message", messages[0].ID, "error", err, "stack", string(debug.Stack()))
		}
	}()
	return w.handle(ctx, messages)
}

// guard runs what is not ours and must not harm the worker.
func (w *Worker) guard(what string, run func()) {
	guard(w.client.connection.logger, what, run, "queue", w.queue)
}

// decide is true for the first who asks.
func (h *handling) decide() bool {
	if !h.isDecided.CompareAndSwap(false, true) {
		return false
	}
	h.took = time.Since(h.beganAt)
	return true
}

// cut is the outcome when the handler's context has ended.
func (h *handling) cut(ctx context.Context) {
	if !h.decide() {
		return
	}
	found := verdict{kind: EventGivenBack, options: []NackOption{WithRetryAfter(0)}}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		timeout := h.worker.chosen.handlerTimeout
		err := fmt.Errorf("handler timed out after %g s", timeout.Seconds())
		found = verdict{kind: EventNacked, err: err, why: err.Error()}
		for _, message := range h.messages {
			h.tell(EventTimedOut, message, err)
		}
	}
	h.worker.settling <- struct{}{}
	go h.settle(found)
}

func verdictOf(err error) verdict {
	var later *Backpressure
	var hopeless *DeadLetter
	switch {
	case err == nil:
		return verdict{kind: EventAcked}
	case errors.As(err, &later):
		options := []NackOption{
			WithRetryAfter(max(later.RetryAfter, 0)), WithThrottledKey(later.ThrottleKey),
		}
		return verdict{EventPutOff, err, reason(later.Reason), options}
	case errors.As(err, &hopeless):
		options := []NackOption{WithDeadLetter()}
		return verdict{EventDeadLettered, err, reason(hopeless.Reason), options}
	}
	// An Error method that panics, such as that of a nil pointer, is no harm to Sprint.
	return verdict{kind: EventNacked, err: err, why: reason(fmt.Sprint(err))}
}

// reason is a text as a nack can carry it.
func reason(text string) string {
	text = strings.ToValidUTF8(text, string(utf8.RuneError))
	if len(text) <= reasonBytesMax {
		return text
	}
	return strings.ToValidUTF8(text[:reasonBytesMax], "")
}

// settle settles what the handler did not settle by itself.
func (h *handling) settle(found verdict) {
	w := h.worker
	defer func() {
		<-w.settling
		w.count(-1)
	}()
	left := make([]*ConsumeMessage, 0, len(h.messages))
	for _, message := range h.messages {
		if !message.isSettled.Load() {
			left = append(left, message)
		}
	}
	var errs []error
	if len(left) > 0 {
		errs = w.settleMessages(left, found)
	}
	for _, message := range h.messages {
		message.frame.release(message.place)
	}
	for i, message := range left {
		if errs[i] == nil {
			h.tell(found.kind, message, found.err)
			continue
		}
		w.client.connection.logger.Warn("message not settled, it comes back when its lease ends",
			"queue", w.queue, "message", message.ID, "as", string(found.kind), "error", errs[i])
		h.tell(EventSettleFailed, message, errs[i])
	}
}

// settleMessages settles one message by a call that shares its request with others, and several by
// one of their own.
func (w *Worker) settleMessages(messages []*ConsumeMessage, found verdict) []error {
	ctx := context.Background() // The deadline is the client's timeout.
	if len(messages) == 1 && found.kind == EventAcked {
		return []error{messages[0].Ack(ctx)}
	}
	if len(messages) == 1 {
		return []error{messages[0].Nack(ctx, found.why, found.options...)}
	}
	var errs []error
	var err error
	if found.kind == EventAcked {
		errs, err = w.client.AckMany(ctx, messages)
	} else {
		errs, err = w.client.nackAll(ctx, messages, found.why, found.options)
	}
	if err != nil { // Nothing was sent.
		errs = make([]error, len(messages))
		for i, message := range messages {
			errs[i] = named(err, message.subject())
		}
	}
	return errs
}

func (h *handling) tell(kind EventKind, message *ConsumeMessage, err error) {
	tell := h.worker.chosen.onEvent
	if tell == nil {
		return
	}
	h.worker.guard("event handler", func() {
		tell(Event{kind, message, h.took, err})
	})
}
