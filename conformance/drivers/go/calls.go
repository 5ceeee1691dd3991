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
	"time"

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
		"features":    []string{"tracing", "mtls"},
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
		options = append(options, fila.WithTLS(fila.TLSOptions(*r.TLS)))
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
	options = append(options, fila.WithVisibilityTimeout(millis(r.VisibilityTimeoutMS)))
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
		fila.WithVisibilityTimeout(millis(r.VisibilityTimeoutMS)),
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
	end, err := c.Extend(ctx, r.Queue, r.MessageID, r.LeaseToken, millis(r.MS))
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
		end, err := message.Extend(ctx, millis(r.MS))
		return object{"lease_expires_at_ms": epochMS(end)}, err
	}
	return nil, fmt.Errorf("%q is no way to settle a message", r.How)
}

func (d *driver) createQueue(
	ctx context.Context, c *fila.Client, r *request,
) (object, error) {
	chosen, err := r.queueSettings()
	if err != nil {
		return nil, err
	}
	name, err := c.CreateQueue(ctx, r.Queue, chosen...)
	return object{"dead_letter_queue": name}, err
}

func (d *driver) deleteQueue(
	ctx context.Context, c *fila.Client, r *request,
) (object, error) {
	var options []fila.DeleteOption
	if r.KeepDeadLetters {
		options = append(options, fila.WithDeadLettersKept())
	}
	deleted, err := c.DeleteQueue(ctx, r.Queue, options...)
	return object{"messages": deleted.Messages, "dead_letters": deleted.DeadLetters}, err
}

func (d *driver) listQueues(
	ctx context.Context, c *fila.Client, _ *request,
) (object, error) {
	rows, err := c.ListQueues(ctx)
	queues := make([]object, len(rows))
	for i, row := range rows {
		queues[i] = object{
			"name":             row.Name,
			"depth":            row.Depth,
			"in_flight":        row.InFlight,
			"active_consumers": row.ActiveConsumers,
		}
	}
	return object{"queues": queues}, err
}

func (d *driver) stats(ctx context.Context, c *fila.Client, r *request) (object, error) {
	found, err := c.Stats(ctx, r.Queue, 0)
	return object{
		"depth":            found.Depth,
		"in_flight":        found.InFlight,
		"delayed":          found.Delayed,
		"active_consumers": found.ActiveConsumers,
	}, err
}

func (d *driver) redrive(ctx context.Context, c *fila.Client, r *request) (object, error) {
	redriven, err := c.Redrive(ctx, r.Queue, fila.RedriveFilter{Count: r.Count})
	return object{"redriven": redriven}, err
}

func (d *driver) setConfig(ctx context.Context, c *fila.Client, r *request) (object, error) {
	return object{}, c.SetConfig(ctx, r.Key, r.Value)
}

func (d *driver) getConfig(ctx context.Context, c *fila.Client, r *request) (object, error) {
	value, err := c.GetConfig(ctx, r.Key)
	return object{"value": value}, err
}

func (d *driver) setConfigAll(
	ctx context.Context, c *fila.Client, r *request,
) (object, error) {
	return object{}, c.SetConfigAll(ctx, r.Entries)
}

func (d *driver) listThrottles(
	ctx context.Context, c *fila.Client, r *request,
) (object, error) {
	filter := fila.ThrottleFilter{Prefix: r.Prefix, IsUnset: r.Unset, Limit: r.Limit}
	page, err := c.ListThrottles(ctx, filter)
	throttles := make([]object, len(page.Throttles))
	for i, row := range page.Throttles {
		throttles[i] = object{
			"key":               row.Key,
			"rate_per_second":   row.RatePerSecond,
			"burst":             row.Burst,
			"concurrency_limit": row.ConcurrencyLimit,
			"in_flight":         row.InFlight,
			"waiting":           row.Waiting,
			"pattern":           row.Pattern,
			"unset":             row.IsUnset,
			"paused":            row.IsPaused,
		}
	}
	return object{"throttles": throttles, "total_count": page.TotalCount}, err
}

func (d *driver) pauseThrottle(
	ctx context.Context, c *fila.Client, r *request,
) (object, error) {
	return object{}, c.PauseThrottle(ctx, r.Key, millis(r.DurationMS))
}

func (d *driver) resumeThrottle(
	ctx context.Context, c *fila.Client, r *request,
) (object, error) {
	return object{}, c.ResumeThrottle(ctx, r.Key)
}

func (d *driver) createAPIKey(
	ctx context.Context, c *fila.Client, r *request,
) (object, error) {
	wanted := fila.APIKeyRequest{Name: r.Name, IsSuperadmin: r.Superadmin}
	for _, entry := range r.ACL {
		wanted.ACL = append(wanted.ACL, fila.ACLEntry(entry))
	}
	if r.ExpiresAtMS != nil {
		wanted.ExpiresAt = time.UnixMilli(*r.ExpiresAtMS)
	}
	key, err := c.CreateAPIKey(ctx, wanted)
	return object{"key_id": key.KeyID, "secret": key.Secret}, err
}

func (d *driver) cancel(_ context.Context, r *request) (object, error) {
	d.lock.Lock()
	defer d.lock.Unlock()
	if cancel := d.underWay[r.Target]; cancel != nil {
		cancel()
	}
	return object{}, nil
}
