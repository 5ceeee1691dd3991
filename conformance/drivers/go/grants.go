// SPDX-License-Identifier: AGPL-3.0-only

// The operations that settle whole grants, and acks that may make one up.

package main

import (
	"context"
	"errors"

	fila "github.com/faiscadev/fila/sdks/go"
)

func (d *driver) ackGrant(ctx context.Context, c *fila.Client, r *request) (object, error) {
	count, err := c.AckGrant(ctx, r.Queue, r.LeaseToken, r.ExceptMessageIDs...)
	return object{"messages": count}, err
}

func (d *driver) nackGrant(ctx context.Context, c *fila.Client, r *request) (object, error) {
	count, err := c.NackGrant(
		ctx, r.Queue, r.LeaseToken, r.Error, r.ExceptMessageIDs, r.nackOptions()...,
	)
	return object{"messages": count}, err
}

func (d *driver) extendGrant(ctx context.Context, c *fila.Client, r *request) (object, error) {
	end, err := c.ExtendGrant(ctx, r.Queue, r.LeaseToken, exactly(r.MS), r.ExceptMessageIDs...)
	return object{"lease_expires_at_ms": epochMS(end)}, err
}

// handedOut is messages that a consumer handed out.
func (d *driver) handedOut(r *request) ([]*fila.ConsumeMessage, error) {
	from, err := d.consumerOf(r)
	if err != nil {
		return nil, err
	}
	messages := make([]*fila.ConsumeMessage, len(r.MessageIDs))
	d.lock.Lock()
	defer d.lock.Unlock()
	for i, id := range r.MessageIDs {
		messages[i] = from.messages[id]
	}
	return messages, nil
}

func (d *driver) ackMany(ctx context.Context, c *fila.Client, r *request) (object, error) {
	messages, err := d.handedOut(r)
	if err != nil {
		return nil, err
	}
	errs, err := c.AckMany(ctx, messages)
	return object{"results": described(errs)}, err
}

func (d *driver) nackMany(ctx context.Context, c *fila.Client, r *request) (object, error) {
	messages, err := d.handedOut(r)
	if err != nil {
		return nil, err
	}
	errs, err := c.NackMany(ctx, messages, r.Error)
	return object{"results": described(errs)}, err
}

func (d *driver) extendMany(ctx context.Context, c *fila.Client, r *request) (object, error) {
	messages, err := d.handedOut(r)
	if err != nil {
		return nil, err
	}
	found, err := c.ExtendMany(ctx, messages, exactly(r.MS))
	results := make([]object, len(found))
	for i, result := range found {
		var failure *fila.Error
		if errors.As(result.Err, &failure) {
			results[i] = object{"error": describe(failure)}
		} else {
			results[i] = object{"lease_expires_at_ms": epochMS(result.LeaseExpiresAt)}
		}
	}
	return object{"results": results}, err
}
