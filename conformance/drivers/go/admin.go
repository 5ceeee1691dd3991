// SPDX-License-Identifier: AGPL-3.0-only

// The operations of whoever runs a broker: queues, what lies in them, configuration, keys.

package main

import (
	"context"
	"time"

	fila "github.com/faiscadev/fila/sdks/go"
)

func (d *driver) ping(ctx context.Context, c *fila.Client, _ *request) (object, error) {
	took, err := c.Ping(ctx)
	return object{"ms": took.Seconds() * 1000}, err
}

func (d *driver) ensureQueue(
	ctx context.Context, c *fila.Client, r *request,
) (object, error) {
	chosen, err := r.queueSettings()
	if err != nil {
		return nil, err
	}
	name, err := c.EnsureQueue(ctx, r.Queue, chosen...)
	return object{"dead_letter_queue": name}, err
}

func (d *driver) updateQueue(
	ctx context.Context, c *fila.Client, r *request,
) (object, error) {
	chosen, err := r.queueSettings()
	if err != nil {
		return nil, err
	}
	now, err := c.UpdateQueue(ctx, r.Queue, chosen...)
	return object{"settings": object{
		"visibility_timeout_ms": now.VisibilityTimeout.Milliseconds(),
		"max_attempts":          now.MaxAttempts,
		"retry_delay_ms":        now.RetryDelay.Milliseconds(),
		"max_messages":          now.MaxMessages,
		"default_ttl_ms":        now.DefaultTTL.Milliseconds(),
		"idempotency_window_ms": now.IdempotencyWindow.Milliseconds(),
	}}, err
}

func (d *driver) peek(ctx context.Context, c *fila.Client, r *request) (object, error) {
	page, err := c.Peek(ctx, r.Queue, fila.PeekQuery{
		Limit:             r.Limit,
		FromPosition:      r.FromPosition,
		UntilPosition:     r.UntilPosition,
		FairnessKey:       r.FairnessKey,
		State:             fila.MessageState(r.State),
		IsPayloadExcluded: r.ExcludePayload,
	})
	messages := make([]object, len(page.Messages))
	for i, row := range page.Messages {
		messages[i] = object{
			"id":           row.Message.ID,
			"payload":      append([]byte{}, row.Message.Payload...),
			"fairness_key": row.Message.FairnessKey,
			"state":        row.State,
			"position":     row.Position,
		}
	}
	return object{
		"messages": messages, "next_position": page.NextPosition, "end_position": page.EndPosition,
	}, err
}

func (d *driver) purge(ctx context.Context, c *fila.Client, r *request) (object, error) {
	purged, err := c.Purge(ctx, r.Queue, r.FairnessKey)
	return object{"purged": purged}, err
}

func (d *driver) pause(ctx context.Context, c *fila.Client, r *request) (object, error) {
	return object{}, c.Pause(ctx, r.Queue, r.FairnessKey)
}

func (d *driver) resume(ctx context.Context, c *fila.Client, r *request) (object, error) {
	return object{}, c.Resume(ctx, r.Queue, r.FairnessKey)
}

func (d *driver) cancelMessage(
	ctx context.Context, c *fila.Client, r *request,
) (object, error) {
	return object{}, c.Cancel(ctx, r.Queue, r.MessageID)
}

func (d *driver) explain(ctx context.Context, c *fila.Client, r *request) (object, error) {
	explain, about := c.ExplainKey, r.FairnessKey
	if r.MessageID != "" {
		explain, about = c.ExplainMessage, r.MessageID
	}
	found, err := explain(ctx, r.Queue, about)
	reasons := make([]fila.WaitKind, len(found.Reasons))
	for i, reason := range found.Reasons {
		reasons[i] = reason.Kind
	}
	return object{
		"summary":       found.Summary,
		"reasons":       reasons,
		"fairness_key":  found.FairnessKey,
		"pending_count": found.PendingCount,
		"ahead":         found.Ahead,
		"state":         orNull(string(found.State)),
	}, err
}

func (d *driver) deleteConfig(
	ctx context.Context, c *fila.Client, r *request,
) (object, error) {
	return object{}, c.DeleteConfig(ctx, r.Key)
}

func (d *driver) listConfig(ctx context.Context, c *fila.Client, r *request) (object, error) {
	entries, err := c.ListConfig(ctx, r.Prefix)
	return object{"entries": entries}, err
}

func (d *driver) revokeAPIKey(
	ctx context.Context, c *fila.Client, r *request,
) (object, error) {
	return object{}, c.RevokeAPIKey(ctx, r.KeyID)
}

func (d *driver) listAPIKeys(
	ctx context.Context, c *fila.Client, _ *request,
) (object, error) {
	rows, err := c.ListAPIKeys(ctx)
	keys := make([]object, len(rows))
	for i, row := range rows {
		keys[i] = object{
			"key_id":        row.KeyID,
			"name":          row.Name,
			"expires_at_ms": epochMS(row.ExpiresAt),
			"superadmin":    row.IsSuperadmin,
			"acl":           listed(row.ACL),
		}
	}
	return object{"keys": keys}, err
}

func (d *driver) setACL(ctx context.Context, c *fila.Client, r *request) (object, error) {
	return object{}, c.SetACL(ctx, r.KeyID, r.permissions())
}

func (d *driver) getACL(ctx context.Context, c *fila.Client, r *request) (object, error) {
	found, err := c.GetACL(ctx, r.KeyID)
	return object{"acl": listed(found.Entries), "superadmin": found.IsSuperadmin}, err
}

func (r *request) permissions() []fila.ACLEntry {
	entries := make([]fila.ACLEntry, len(r.ACL))
	for i, entry := range r.ACL {
		entries[i] = fila.ACLEntry(entry)
	}
	return entries
}

func listed(entries []fila.ACLEntry) []aclEntry {
	acl := make([]aclEntry, len(entries))
	for i, entry := range entries {
		acl[i] = aclEntry(entry)
	}
	return acl
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
	wanted := fila.APIKeyRequest{
		Name: r.Name, ACL: r.permissions(), IsSuperadmin: r.Superadmin,
	}
	if r.ExpiresAtMS != nil {
		wanted.ExpiresAt = time.UnixMilli(*r.ExpiresAtMS)
	}
	key, err := c.CreateAPIKey(ctx, wanted)
	return object{"key_id": key.KeyID, "secret": key.Secret}, err
}
