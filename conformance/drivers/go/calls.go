// SPDX-License-Identifier: AGPL-3.0-only

// One function per operation: a request becomes a call of the SDK, and its result the reply.

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	fila "github.com/faiscadev/fila/sdks/go"
)

var errUnknownOp = errors.New("no such operation")

// consumer keeps what it handed out, so that messages can be settled by their own methods.
type consumer struct {
	*fila.Consumer
	messages map[string]*fila.ConsumeMessage
}

// Operations without a client.
var operations = map[string]func(*driver, context.Context, *request) (object, error){
	"hello":   (*driver).hello,
	"connect": (*driver).connect,
	"next":    (*driver).next,
	"stop":    (*driver).stop,
	"settle":  (*driver).settle,
	"process": (*driver).process,
	"cancel":  (*driver).cancel,

	"next_shared": (*driver).nextShared,
	"handled":     (*driver).handled,
	"stop_worker": (*driver).stopWorker,
}

// Operations with one.
var calls = map[string]func(*driver, context.Context, *fila.Client, *request) (object, error){
	"close": func(_ *driver, _ context.Context, c *fila.Client, _ *request) (object, error) {
		return object{}, c.Close()
	},
	"flush": func(_ *driver, ctx context.Context, c *fila.Client, _ *request) (object, error) {
		return object{}, c.Flush(ctx)
	},
	"work":                 (*driver).work,
	"enqueue":              (*driver).enqueue,
	"enqueue_many":         (*driver).enqueueMany,
	"enqueue_concurrently": (*driver).enqueueConcurrently,
	"consume":              (*driver).consume,
	"receive":              (*driver).receive,
	"ack":                  (*driver).ack,
	"nack":                 (*driver).nack,
	"extend":               (*driver).extend,
	"ack_concurrently":     (*driver).ackConcurrently,
	"ack_many":             (*driver).ackMany,
	"ack_grant":            (*driver).ackGrant,
	"nack_grant":           (*driver).nackGrant,
	"extend_grant":         (*driver).extendGrant,
	"create_queue":         (*driver).createQueue,
	"delete_queue":         (*driver).deleteQueue,
	"list_queues":          (*driver).listQueues,
	"stats":                (*driver).stats,
	"redrive":              (*driver).redrive,
	"set_config":           (*driver).setConfig,
	"get_config":           (*driver).getConfig,
	"set_config_all":       (*driver).setConfigAll,
	"list_throttles":       (*driver).listThrottles,
	"pause_throttle":       (*driver).pauseThrottle,
	"resume_throttle":      (*driver).resumeThrottle,
	"create_api_key":       (*driver).createAPIKey,
	"nack_many":            (*driver).nackMany,
	"extend_many":          (*driver).extendMany,
	"enqueue_ill_formed":   (*driver).enqueueIllFormed,
	"ensure_queue":         (*driver).ensureQueue,
	"update_queue":         (*driver).updateQueue,
	"peek":                 (*driver).peek,
	"purge":                (*driver).purge,
	"pause":                (*driver).pause,
	"resume":               (*driver).resume,
	"cancel_message":       (*driver).cancelMessage,
	"explain":              (*driver).explain,
	"delete_config":        (*driver).deleteConfig,
	"list_config":          (*driver).listConfig,
	"revoke_api_key":       (*driver).revokeAPIKey,
	"list_api_keys":        (*driver).listAPIKeys,
	"set_acl":              (*driver).setACL,
	"get_acl":              (*driver).getACL,
	"ping":                 (*driver).ping,
}

func (d *driver) run(ctx context.Context, r *request) (object, error) {
	if r.TimeoutMS != nil {
		// A context's deadline covers the wait, which comes on top of the SDK's own timeout.
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, millis(*r.TimeoutMS)+millis(r.WaitMS))
		defer cancel()
	}
	if r.Op == "with_span" {
		return d.withSpan(ctx, r)
	}
	if operation := operations[r.Op]; operation != nil {
		return operation(d, ctx, r)
	}
	call := calls[r.Op]
	if call == nil {
		return nil, fmt.Errorf("%w: %q", errUnknownOp, r.Op)
	}
	d.lock.Lock()
	client := d.clients[r.Client]
	d.lock.Unlock()
	if client == nil {
		return nil, fmt.Errorf("no client is called %s", r.Client)
	}
	return call(d, ctx, client, r)
}

func (d *driver) hello(context.Context, *request) (object, error) {
	return object{
		"sdk":         "github.com/faiscadev/fila/sdks/go",
		"sdk_version": fila.Version,
		"language":    "go",
		"features": []string{
			"tracing", "mtls", "admin", "nack_many", "around", "error_fields", "shared_consumer",
			"ill_formed_text", "sub_millisecond",
		},
	}, nil
}

func (d *driver) connect(_ context.Context, r *request) (object, error) {
	var target string
	if err := json.Unmarshal([]byte(r.Target.orNull()), &target); err != nil {
		return nil, err
	}
	var options []fila.ClientOption
	if r.APIKey != nil {
		options = append(options, fila.WithAPIKey(*r.APIKey))
	}
	if r.TLS != nil {
		options = append(options, fila.WithTLS(fila.TLSOptions{
			CAFile: r.TLS.CAFile, CertFile: r.TLS.CertFile, KeyFile: r.TLS.KeyFile,
			ServerName: r.TLS.ServerName,
		}))
	}
	if r.Options.TimeoutMS != nil {
		options = append(options, fila.WithTimeout(millis(*r.Options.TimeoutMS)))
	}
	options = append(options, fila.WithBackoff(fila.Backoff{
		Initial: millis(r.Options.BackoffInitialMS), Maximum: millis(r.Options.BackoffMaximumMS),
	}))
	client, err := fila.NewClient(cmp.Or(target, fila.DefaultTarget), options...)
	if err != nil {
		return nil, err
	}
	d.lock.Lock()
	defer d.lock.Unlock()
	d.clients[r.Client] = client
	return object{}, nil
}

func (d *driver) enqueue(
	ctx context.Context, c *fila.Client, r *request,
) (object, error) {
	m := r.toEnqueue()
	id, err := c.Enqueue(ctx, m.Queue, m.Headers, m.Payload,
		fila.WithFairnessKey(m.FairnessKey),
		fila.WithWeight(m.Weight),
		fila.WithThrottleKeys(m.ThrottleKeys...),
		fila.WithThrottleCost(m.ThrottleCost),
		fila.WithDelay(m.Delay),
		fila.WithDeliverAt(m.DeliverAt),
		fila.WithTTL(m.TTL),
		fila.WithIdempotencyKey(m.IdempotencyKey),
	)
	return object{"message_id": id}, err
}

func (d *driver) enqueueMany(
	ctx context.Context, c *fila.Client, r *request,
) (object, error) {
	messages := make([]fila.EnqueueMessage, len(r.Messages))
	for i, m := range r.Messages {
		messages[i] = m.toEnqueue()
	}
	found, err := c.EnqueueMany(ctx, messages)
	results := make([]object, len(found))
	for i, result := range found {
		var failure *fila.Error
		if errors.As(result.Err, &failure) {
			results[i] = object{"error": describe(failure)}
		} else {
			results[i] = object{"message_id": result.MessageID, "duplicate": result.IsDuplicate}
		}
	}
	return object{"results": results}, err
}

// enqueueIllFormed puts a text that is not UTF-8 where it is told.
func (d *driver) enqueueIllFormed(
	ctx context.Context, c *fila.Client, r *request,
) (object, error) {
	const text = "x\xffy"
	message := fila.EnqueueMessage{Queue: r.Queue}
	switch r.Where {
	case "header_key":
		message.Headers = map[string]string{text: "value"}
	case "header_value":
		message.Headers = map[string]string{"key": text}
	case "fairness_key":
		message.FairnessKey = text
	case "idempotency_key":
		message.IdempotencyKey = text
	default:
		return nil, fmt.Errorf("%q is no place for a text", r.Where)
	}
	_, err := c.Enqueue(ctx, message.Queue, message.Headers, nil,
		fila.WithFairnessKey(message.FairnessKey),
		fila.WithIdempotencyKey(message.IdempotencyKey),
	)
	if errors.Is(err, fila.ErrInvalidArgument) {
		return object{"refused": true}, nil
	}
	return object{"refused": false}, err
}

// concurrently makes count calls, all of them started before one is awaited.
func concurrently(count int, call func(int) error) []error {
	errs := make([]error, count)
	var calls sync.WaitGroup
	for i := range count {
		calls.Go(func() { errs[i] = call(i) })
	}
	calls.Wait()
	return errs
}

func (d *driver) enqueueConcurrently(
	ctx context.Context, c *fila.Client, r *request,
) (object, error) {
	ids := make([]string, r.Count)
	errs := concurrently(len(ids), func(i int) (err error) {
		key := fila.WithFairnessKey(r.FairnessKey)
		ids[i], err = c.Enqueue(ctx, r.Queue, nil, r.Payload, key)
		return err
	})
	return object{"message_ids": ids}, cmp.Or(errs...)
}

func (d *driver) consume(
	ctx context.Context, c *fila.Client, r *request,
) (object, error) {
	var options []fila.ConsumeOption
	if r.MaxInFlight != nil {
		options = append(options, fila.WithMaxInFlight(*r.MaxInFlight))
	}
	if r.BatchSize != nil {
		options = append(options, fila.WithBatchSize(*r.BatchSize))
	}
	if r.ExtendLeases != nil {
		options = append(options, fila.WithLeaseExtension(*r.ExtendLeases))
	}
	options = append(options, fila.WithVisibilityTimeout(exactly(r.VisibilityTimeoutMS)))
	// The consumer outlives this request, and keeps its span.
	opened, err := c.Consume(context.WithoutCancel(ctx), r.Queue, options...)
	if err != nil {
		return nil, err
	}
	d.lock.Lock()
	defer d.lock.Unlock()
	d.consumers[r.Consumer] = &consumer{opened, map[string]*fila.ConsumeMessage{}}
	return object{}, nil
}

func (d *driver) consumerOf(r *request) (*consumer, error) {
	d.lock.Lock()
	defer d.lock.Unlock()
	if found := d.consumers[r.Consumer]; found != nil {
		return found, nil
	}
	return nil, fmt.Errorf("no consumer is called %s", r.Consumer)
}

func (d *driver) next(ctx context.Context, r *request) (object, error) {
	from, err := d.consumerOf(r)
	if err != nil {
		return nil, err
	}
	waiting, cancel := context.WithTimeout(ctx, millis(r.WaitMS))
	defer cancel()
	var messages []*fila.ConsumeMessage
	isEnded := false
	for len(messages) < r.Max {
		message, err := from.Next(waiting)
		if errors.Is(err, io.EOF) {
			isEnded = true
			break
		}
		if err != nil {
			isTimeUp := errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil
			if !isTimeUp && (ctx.Err() != nil || len(messages) == 0) {
				return nil, err
			}
			break
		}
		messages = append(messages, message)
	}
	d.lock.Lock()
	defer d.lock.Unlock()
	for _, message := range messages {
		from.messages[message.ID] = message
	}
	return object{"messages": delivered(messages), "ended": isEnded}, nil
}

// unless is an error, or nothing where that was to be expected.
func unless(isExpected bool, err error) error {
	if isExpected {
		return nil
	}
	return err
}

// nextShared has many goroutines take messages from one consumer, until they have enough.
func (d *driver) nextShared(ctx context.Context, r *request) (object, error) {
	from, err := d.consumerOf(r)
	if err != nil {
		return nil, err
	}
	waiting, enough := context.WithTimeout(ctx, millis(r.WaitMS))
	defer enough()
	var count atomic.Uint64
	taken := make([][]string, r.Readers)
	errs := concurrently(r.Readers, func(i int) error {
		taken[i] = []string{}
		for waiting.Err() == nil {
			message, err := from.Next(waiting)
			if err != nil {
				return unless(waiting.Err() != nil, err)
			}
			taken[i] = append(taken[i], message.ID)
			d.lock.Lock()
			from.messages[message.ID] = message
			d.lock.Unlock()
			if count.Add(1) >= r.Count {
				enough()
			}
		}
		return nil
	})
	return object{"taken": taken}, cmp.Or(errs...)
}

func (d *driver) stop(_ context.Context, r *request) (object, error) {
	from, err := d.consumerOf(r)
	if err != nil {
		return nil, err
	}
	return object{}, from.Close()
}

func (d *driver) receive(
	ctx context.Context, c *fila.Client, r *request,
) (object, error) {
	messages, err := c.Receive(ctx, r.Queue, r.MaxMessages,
		fila.WithWait(millis(r.WaitMS)),
		fila.WithVisibilityTimeout(exactly(r.VisibilityTimeoutMS)),
	)
	return object{"messages": delivered(messages)}, err
}

func (d *driver) ack(ctx context.Context, c *fila.Client, r *request) (object, error) {
	return object{}, c.Ack(ctx, r.Queue, r.MessageID, r.LeaseToken)
}

func (d *driver) nack(ctx context.Context, c *fila.Client, r *request) (object, error) {
	return object{}, c.Nack(ctx, r.Queue, r.MessageID, r.LeaseToken, r.Error, r.nackOptions()...)
}

func (r *request) nackOptions() []fila.NackOption {
	options := []fila.NackOption{fila.WithThrottledKey(r.ThrottleKey)}
	if r.RetryAfterMS != nil {
		options = append(options, fila.WithRetryAfter(millis(*r.RetryAfterMS)))
	}
	if r.DeadLetter {
		options = append(options, fila.WithDeadLetter())
	}
	return options
}

func (d *driver) extend(ctx context.Context, c *fila.Client, r *request) (object, error) {
	end, err := c.Extend(ctx, r.Queue, r.MessageID, r.LeaseToken, exactly(r.MS))
	return object{"lease_expires_at_ms": epochMS(end)}, err
}

// described is null, or what an error says, for each.
func described(errs []error) []object {
	results := make([]object, len(errs))
	for i, err := range errs {
		var failure *fila.Error
		if errors.As(err, &failure) {
			results[i] = describe(failure)
		}
	}
	return results
}

func (d *driver) ackConcurrently(
	ctx context.Context, c *fila.Client, r *request,
) (object, error) {
	errs := concurrently(len(r.Acks), func(i int) error {
		return c.Ack(ctx, r.Queue, r.Acks[i].MessageID, r.Acks[i].LeaseToken)
	})
	results := described(errs)
	return object{"results": results}, nil
}

// delivered returns what a consumer handed out.
func (d *driver) delivered(r *request) (*fila.ConsumeMessage, error) {
	from, err := d.consumerOf(r)
	if err != nil {
		return nil, err
	}
	d.lock.Lock()
	message := from.messages[r.MessageID]
	d.lock.Unlock()
	if message == nil {
		return nil, fmt.Errorf("consumer %s handed out no message %q", r.Consumer, r.MessageID)
	}
	return message, nil
}

func (d *driver) settle(ctx context.Context, r *request) (object, error) {
	message, err := d.delivered(r)
	if err != nil {
		return nil, err
	}
	switch r.How {
	case "ack":
		return object{}, message.Ack(ctx)
	case "nack":
		return object{}, message.Nack(ctx, r.Error)
	case "extend":
		end, err := message.Extend(ctx, exactly(r.MS))
		return object{"lease_expires_at_ms": epochMS(end)}, err
	}
	return nil, fmt.Errorf("%q is no way to settle a message", r.How)
}

func (d *driver) cancel(_ context.Context, r *request) (object, error) {
	d.lock.Lock()
	defer d.lock.Unlock()
	if cancel := d.underWay[r.Target]; cancel != nil {
		cancel()
	}
	return object{}, nil
}
