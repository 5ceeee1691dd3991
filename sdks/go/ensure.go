// SPDX-License-Identifier: AGPL-3.0-only

// A queue that has to be there: created if it is missing, compared if it is not, and never changed.
// A worker of an older release that starts again must not undo an operator's change.

package fila

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/faiscadev/fila/sdks/go/internal/filapb"
)

// A queue's dead-letter queue has its name and this.
const deadLetterSuffix = ".dlq"

// The broker's own reason, because it was the broker that found the queue there.
const queueExists = "QUEUE_ALREADY_EXISTS"

// Enough to tell scripts apart, on one line.
const shownBytesMax = 80

// EnsureQueue creates a queue if it is missing, and is content if it is there with these settings;
// those that are not given are not compared. It returns the name of its dead-letter queue. Fails
// with ErrQueueAlreadyExists, which names what differs, when the queue has other settings;
// UpdateQueue changes them.
func (c *Client) EnsureQueue(
	ctx context.Context, name string, settings ...QueueSetting,
) (string, error) {
	ctx, cancel := c.connection.withDeadline(ctx, 0)
	defer cancel()
	letters, err := c.CreateQueue(ctx, name, settings...)
	if !errors.Is(err, ErrQueueAlreadyExists) {
		return letters, err
	}
	err = c.compareQueue(ctx, name, settings)
	if errors.Is(err, ErrQueueNotFound) { // It was deleted in between.
		return c.CreateQueue(ctx, name, settings...)
	}
	if err != nil {
		return "", err
	}
	return name + deadLetterSuffix, nil
}

// compareQueue fails when a queue has other settings than these.
func (c *Client) compareQueue(ctx context.Context, name string, settings []QueueSetting) error {
	about := subject{queue: name}
	wanted, paths, err := queueConfig(settings, about)
	if err != nil {
		return err
	}
	request := &filapb.GetStatsRequest{Queue: name, MaxKeys: 1}
	answer, err := repeatedly(ctx, c.connection, c.connection.admin.GetStats, request, about)
	if err != nil {
		return err
	}
	differences := compare(paths, wanted, answer.GetConfig())
	if len(differences) == 0 {
		return nil
	}
	text := fmt.Sprintf("queue %q exists with other settings: %s; UpdateQueue changes them",
		name, strings.Join(differences, ", "))
	return statusError(codes.AlreadyExists, queueExists, text, about, nil)
}

// compare says of each setting that is not as wanted what it is.
func compare(paths []string, wanted, found *filapb.QueueConfig) []string {
	var differences []string
	for _, path := range paths {
		field := wanted.ProtoReflect().Descriptor().Fields().ByName(protoreflect.Name(path))
		want, has := wanted.ProtoReflect().Get(field), found.ProtoReflect().Get(field)
		if field.Kind() == protoreflect.EnumKind {
			want, has = policyOf(want), policyOf(has)
		}
		if !want.Equal(has) {
			text := fmt.Sprintf("%s is %s, not %s", path, shown(has), shown(want))
			differences = append(differences, text)
		}
	}
	return differences
}

// policyOf is the policy that is in force: unspecified is the default.
func policyOf(value protoreflect.Value) protoreflect.Value {
	number := filapb.HookErrorPolicy(value.Enum())
	if number == filapb.HookErrorPolicy_HOOK_ERROR_POLICY_UNSPECIFIED {
		number = filapb.HookErrorPolicy_HOOK_ERROR_POLICY_DEFAULT
	}
	name := enumValue("HOOK_ERROR_POLICY_", filapb.HookErrorPolicy_name, int32(number))
	return protoreflect.ValueOfString(name)
}

// shown is a setting as errors show it: of a script, its beginning.
func shown(value protoreflect.Value) string {
	text, isText := value.Interface().(string)
	if !isText {
		return value.String()
	}
	if len(text) > shownBytesMax {
		text = strings.ToValidUTF8(text[:shownBytesMax], "") + "..."
	}
	return strconv.Quote(text)
}
