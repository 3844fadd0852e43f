// SPDX-License-Identifier: Apache-2.0

package filestorageextension

import (
	"context"
	"errors"
	"syscall"

	"go.opentelemetry.io/collector/extension/xextension/storage"
)

// client is contrib's client, except that a full disk does not keep a batch from reading.
type client struct {
	storage.Client
}

var _ storage.Walker = (*client)(nil)

// Batch executes operations in one transaction. On a full disk, it executes the reads, writes nothing
// and returns no error. A sending queue reads an item and writes its new position in one batch, and
// deletes the item if that fails. With an error, it would lose each item in turn on a full disk. A
// position that was not written makes the queue send the item again after a kill.
func (c *client) Batch(ctx context.Context, ops ...*storage.Operation) error {
	err := c.Client.Batch(ctx, ops...)
	if !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) && !errors.Is(err, storage.ErrStorageFull) {
		return err
	}
	var reads []*storage.Operation
	for _, op := range ops {
		if op.Type == storage.Get {
			reads = append(reads, op)
		}
	}
	if len(reads) == 0 {
		return err
	}
	return c.Client.Batch(ctx, reads...)
}

func (c *client) Walk(ctx context.Context, fn storage.WalkFunc) error {
	return c.Client.(storage.Walker).Walk(ctx, fn)
}
