// SPDX-License-Identifier: AGPL-3.0-only

// Operating a broker: queues, dead letters, inspection and runtime configuration. What only reads,
// and setting an entry, is sent again while the broker is away; what changes something is not.

package fila

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/faiscadev/fila/sdks/go/internal/filapb"
)

// CreateQueue creates a queue and its dead-letter queue, and returns the latter's name. Fails with
// ErrQueueAlreadyExists, ErrInvalidArgument or ErrInvalidScript.
func (c *Client) CreateQueue(
	ctx context.Context, name string, settings ...QueueSetting,
) (string, error) {
	about := subject{queue: name}
	config, _, err := queueConfig(settings, about)
	if err != nil {
		return "", err
	}
	request := &filapb.CreateQueueRequest{Name: name, Config: config}
	answer, err := once(ctx, c.connection, c.connection.admin.CreateQueue, request, about)
	return answer.GetDeadLetterQueue(), err
}

// UpdateQueue changes the settings that are named, and returns all of them.
func (c *Client) UpdateQueue(
	ctx context.Context, queue string, settings ...QueueSetting,
) (QueueConfig, error) {
	about := subject{queue: queue}
	config, paths, err := queueConfig(settings, about)
	if err != nil {
		return QueueConfig{}, err
	}
	request := &filapb.UpdateQueueRequest{
		Queue: queue, Config: config, UpdateMask: &fieldmaskpb.FieldMask{Paths: paths},
	}
	answer, err := once(ctx, c.connection, c.connection.admin.UpdateQueue, request, about)
	if err != nil {
		return QueueConfig{}, err
	}
	return readConfig(answer.GetConfig()), nil
}

// DeleteQueue removes a queue with everything in it and its dead letters, and returns how many
// went.
func (c *Client) DeleteQueue(
	ctx context.Context, queue string, options ...DeleteOption,
) (DeletedQueue, error) {
	request := &filapb.DeleteQueueRequest{Queue: queue}
	for _, option := range options {
		option(request)
	}
	about := subject{queue: queue}
	answer, err := once(ctx, c.connection, c.connection.admin.DeleteQueue, request, about)
	return DeletedQueue{
		Messages: answer.GetMessages(), DeadLetters: answer.GetDeadLetters(),
	}, err
}

// DeleteOption is a choice about one deletion.
type DeleteOption func(*filapb.DeleteQueueRequest)

// WithDeadLettersKept leaves the dead-letter queue in place.
func WithDeadLettersKept() DeleteOption {
	return func(request *filapb.DeleteQueueRequest) { request.KeepDeadLetters = true }
}

// ListQueues returns all queues by name.
func (c *Client) ListQueues(ctx context.Context) ([]QueueInfo, error) {
	request := &filapb.ListQueuesRequest{}
	answer, err := repeatedly(
		ctx, c.connection, c.connection.admin.ListQueues, request, subject{},
	)
	if err != nil {
		return nil, err
	}
	return each(answer.GetQueues(), readQueueInfo), nil
}

// Stats reports counts, scheduling state and settings of a queue, with its maxKeys busiest fairness
// keys; 0 means 100.
func (c *Client) Stats(ctx context.Context, queue string, maxKeys uint32) (QueueStats, error) {
	request := &filapb.GetStatsRequest{Queue: queue, MaxKeys: maxKeys}
	about := subject{queue: queue}
	answer, err := repeatedly(ctx, c.connection, c.connection.admin.GetStats, request, about)
	if err != nil {
		return QueueStats{}, err
	}
	return readStats(answer), nil
}

// PeekQuery says which messages to show; the zero value shows the ten oldest.
type PeekQuery struct {
	// Limit is the most messages to return; 0 means 10.
	Limit uint32
	// FromPosition and UntilPosition bound the scan; 0 means no bound.
	FromPosition  uint64
	UntilPosition uint64
	// FairnessKey and State choose messages; empty means any.
	FairnessKey string
	State       MessageState
	// IsPayloadExcluded leaves payloads out.
	IsPayloadExcluded bool
}

// Peek shows messages without leasing them, oldest first.
func (c *Client) Peek(ctx context.Context, queue string, query PeekQuery) (PeekPage, error) {
	about := subject{queue: queue}
	state, isState := filapb.MessageState_value[enumName("MESSAGE_STATE_", string(query.State))]
	if !isState {
		return PeekPage{}, invalid(fmt.Sprintf("%q is not a state of messages", query.State), about)
	}
	request := &filapb.PeekRequest{
		Queue:          queue,
		Limit:          query.Limit,
		FromPosition:   query.FromPosition,
		UntilPosition:  query.UntilPosition,
		FairnessKey:    query.FairnessKey,
		State:          filapb.MessageState(state),
		ExcludePayload: query.IsPayloadExcluded,
	}
	answer, err := repeatedly(ctx, c.connection, c.connection.admin.Peek, request, about)
	if err != nil {
		return PeekPage{}, err
	}
	return PeekPage{
		Messages:     each(answer.GetMessages(), readPeeked),
		NextPosition: answer.GetNextPosition(),
		EndPosition:  answer.GetEndPosition(),
	}, nil
}

// Purge drops pending and delayed messages, of one fairness key or with "" of all, and returns how
// many.
func (c *Client) Purge(ctx context.Context, queue, fairnessKey string) (uint64, error) {
	request := &filapb.PurgeRequest{Queue: queue, FairnessKey: fairnessKey}
	about := subject{queue: queue}
	answer, err := once(ctx, c.connection, c.connection.admin.Purge, request, about)
	return answer.GetPurged(), err
}

// Pause stops deliveries of one fairness key, or with "" of the whole queue; enqueueing goes on.
func (c *Client) Pause(ctx context.Context, queue, fairnessKey string) error {
	request := &filapb.PauseRequest{Queue: queue, FairnessKey: fairnessKey}
	about := subject{queue: queue}
	_, err := once(ctx, c.connection, c.connection.admin.Pause, request, about)
	return err
}

// Resume starts deliveries again, of one fairness key or with "" of the whole queue.
func (c *Client) Resume(ctx context.Context, queue, fairnessKey string) error {
	request := &filapb.ResumeRequest{Queue: queue, FairnessKey: fairnessKey}
	about := subject{queue: queue}
	_, err := once(ctx, c.connection, c.connection.admin.Resume, request, about)
	return err
}

// RedriveFilter says which dead letters to move; the zero value moves all.
type RedriveFilter struct {
	// Count is the most to move; 0 means all.
	Count         uint64
	FairnessKey   string
	ErrorContains string
	MessageIDs    []string
}

// Redrive moves dead letters back to where they came from, oldest first, and returns how many.
// Fails with ErrNotADeadLetterQueue or ErrParentQueueNotFound.
func (c *Client) Redrive(
	ctx context.Context, deadLetterQueue string, filter RedriveFilter,
) (uint64, error) {
	request := &filapb.RedriveRequest{
		DlqQueue:      deadLetterQueue,
		Count:         filter.Count,
		FairnessKey:   filter.FairnessKey,
		ErrorContains: filter.ErrorContains,
		MessageIds:    filter.MessageIDs,
	}
	about := subject{queue: deadLetterQueue}
	answer, err := once(ctx, c.connection, c.connection.admin.Redrive, request, about)
	return answer.GetRedriven(), err
}

// Cancel drops one message. Fails with ErrMessageLeased when it is leased.
func (c *Client) Cancel(ctx context.Context, queue, messageID string) error {
	request := &filapb.CancelMessageRequest{Queue: queue, MessageId: messageID}
	about := subject{queue, messageID}
	_, err := once(ctx, c.connection, c.connection.admin.CancelMessage, request, about)
	return err
}

// ExplainMessage says why a message waits, and for how long.
func (c *Client) ExplainMessage(
	ctx context.Context, queue, messageID string,
) (Explanation, error) {
	request := &filapb.ExplainRequest{Queue: queue, MessageId: messageID}
	return c.explain(ctx, request, subject{queue, messageID})
}

// ExplainKey says why the messages of a fairness key wait, and for how long.
func (c *Client) ExplainKey(
	ctx context.Context, queue, fairnessKey string,
) (Explanation, error) {
	request := &filapb.ExplainRequest{Queue: queue, FairnessKey: fairnessKey}
	return c.explain(ctx, request, subject{queue: queue})
}

func (c *Client) explain(
	ctx context.Context, request *filapb.ExplainRequest, about subject,
) (Explanation, error) {
	answer, err := repeatedly(ctx, c.connection, c.connection.admin.Explain, request, about)
	if err != nil {
		return Explanation{}, err
	}
	return readExplanation(answer), nil
}

// SetConfig sets one entry, in force at once; limits such as throttle:<key>:rate are entries. An
// empty value removes the entry.
func (c *Client) SetConfig(ctx context.Context, key, value string) error {
	request := &filapb.SetConfigRequest{Key: key, Value: value}
	_, err := repeatedly(ctx, c.connection, c.connection.admin.SetConfig, request, subject{})
	return err
}

// SetConfigAll sets several entries together, all or none; an empty value removes its entry.
func (c *Client) SetConfigAll(ctx context.Context, entries map[string]string) error {
	request := &filapb.SetConfigRequest{}
	for _, key := range slices.Sorted(maps.Keys(entries)) {
		entry := &filapb.ConfigEntry{Key: key, Value: entries[key]}
		request.Entries = append(request.Entries, entry)
	}
	_, err := repeatedly(ctx, c.connection, c.connection.admin.SetConfig, request, subject{})
	return err
}

// GetConfig reads one entry. Fails with ErrConfigNotFound.
func (c *Client) GetConfig(ctx context.Context, key string) (string, error) {
	request := &filapb.GetConfigRequest{Key: key}
	answer, err := repeatedly(ctx, c.connection, c.connection.admin.GetConfig, request, subject{})
	return answer.GetValue(), err
}

// DeleteConfig removes one entry, and the limit that it set. Fails with ErrConfigNotFound.
func (c *Client) DeleteConfig(ctx context.Context, key string) error {
	request := &filapb.DeleteConfigRequest{Key: key}
	_, err := once(ctx, c.connection, c.connection.admin.DeleteConfig, request, subject{})
	return err
}

// ListConfig returns the entries whose keys start with the prefix.
func (c *Client) ListConfig(ctx context.Context, prefix string) (map[string]string, error) {
	request := &filapb.ListConfigRequest{Prefix: prefix}
	answer, err := repeatedly(
		ctx, c.connection, c.connection.admin.ListConfig, request, subject{},
	)
	if err != nil {
		return nil, err
	}
	entries := make(map[string]string, len(answer.GetEntries()))
	for _, entry := range answer.GetEntries() {
		entries[entry.GetKey()] = entry.GetValue()
	}
	return entries, nil
}
