// SPDX-License-Identifier: Apache-2.0

package storageclient

import (
	"context"
	"encoding/binary"
	"errors"

	"github.com/cespare/xxhash/v2"
	"go.opentelemetry.io/collector/extension/xextension/storage"
)

// ErrDamaged is the error of a checked client if a stored value differs from the value that was
// written under its key.
var ErrDamaged = errors.New("stored value is damaged")

// Checked returns a client that stores a checksum of key and value with each value, since bbolt has
// none. Get and Batch return ErrDamaged for a value whose checksum does not match. A nil client
// stays nil. The client is as safe for concurrent use as the client it wraps.
func Checked(c storage.Client) storage.Client {
	if c == nil {
		return nil
	}
	return checked{c}
}

type checked struct{ storage.Client }

const checksumBytes = 8

func checksum(key string, value []byte) uint64 {
	var d xxhash.Digest
	d.Reset()
	_, _ = d.WriteString(key) // Write of a hash never fails
	_, _ = d.Write(value)
	return d.Sum64()
}

func seal(key string, value []byte) []byte {
	b := append(make([]byte, 0, len(value)+checksumBytes), value...)
	return binary.LittleEndian.AppendUint64(b, checksum(key, value))
}

func unseal(key string, b []byte) ([]byte, error) {
	if b == nil {
		return nil, nil
	}
	n := len(b) - checksumBytes
	if n < 0 || binary.LittleEndian.Uint64(b[n:]) != checksum(key, b[:n]) {
		return nil, ErrDamaged
	}
	return b[:n:n], nil
}

func (c checked) Get(ctx context.Context, key string) ([]byte, error) {
	b, err := c.Client.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	return unseal(key, b)
}

func (c checked) Set(ctx context.Context, key string, value []byte) error {
	return c.Client.Set(ctx, key, seal(key, value))
}

func (c checked) Batch(ctx context.Context, ops ...*storage.Operation) error {
	sealed := make([]*storage.Operation, len(ops))
	for i, op := range ops {
		sealed[i] = op
		if op.Type == storage.Set {
			sealed[i] = storage.SetOperation(op.Key, seal(op.Key, op.Value))
		}
	}
	err := c.Client.Batch(ctx, sealed...)
	for _, op := range ops {
		if op.Type == storage.Get && err == nil {
			op.Value, err = unseal(op.Key, op.Value)
		}
	}
	return err
}

// RemoveAll removes all values whose key begins with prefix, damaged values included. It returns
// false if the storage cannot list its keys.
func RemoveAll(ctx context.Context, c storage.Client, prefix string) (bool, error) {
	if own, ok := c.(checked); ok {
		c = own.Client
	}
	w, ok := c.(storage.Walker)
	if !ok {
		return false, nil
	}
	return true, w.Walk(ctx, func(key string, _ []byte) ([]*storage.Operation, error) {
		if len(key) < len(prefix) || key[:len(prefix)] != prefix {
			return nil, nil
		}
		return []*storage.Operation{storage.DeleteOperation(key)}, nil
	})
}
