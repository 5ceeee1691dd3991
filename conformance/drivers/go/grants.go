// SPDX-License-Identifier: AGPL-3.0-only

// The operations that settle whole grants, and acks that may make one up.

package main

import (
	"context"

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
	end, err := c.ExtendGrant(ctx, r.Queue, r.LeaseToken, millis(r.MS), r.ExceptMessageIDs...)
	return object{"lease_expires_at_ms": epochMS(end)}, err
}

func (d *driver) ackMany(ctx context.Context, c *fila.Client, r *request) (object, error) {
	from, err := d.consumerOf(r)
	if err != nil {
		return nil, err
	}
	messages := make([]*fila.ConsumeMessage, len(r.MessageIDs))
	d.lock.Lock()
	for i, id := range r.MessageIDs {
		messages[i] = from.messages[id]
	}
	d.lock.Unlock()
	errs, err := c.AckMany(ctx, messages)
	return object{"results": described(errs)}, err
}
