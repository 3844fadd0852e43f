// SPDX-License-Identifier: Apache-2.0

package storageclient

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/extension/xextension/storage"
)

type memory struct{ m map[string][]byte }

func (m *memory) Get(_ context.Context, k string) ([]byte, error) { return m.m[k], nil }
func (m *memory) Set(_ context.Context, k string, v []byte) error { m.m[k] = v; return nil }
func (m *memory) Delete(_ context.Context, k string) error        { delete(m.m, k); return nil }
func (m *memory) Close(context.Context) error                     { return nil }
func (m *memory) Walk(_ context.Context, fn storage.WalkFunc) error {
	for k, v := range m.m {
		ops, err := fn(k, v)
		if err != nil {
			return err
		}
		for _, op := range ops {
			delete(m.m, op.Key)
		}
	}
	return nil
}

func (m *memory) Batch(_ context.Context, ops ...*storage.Operation) error {
	for _, op := range ops {
		switch op.Type {
		case storage.Get:
			op.Value = m.m[op.Key]
		case storage.Set:
			m.m[op.Key] = op.Value
		case storage.Delete:
			delete(m.m, op.Key)
		}
	}
	return nil
}

func TestChecked_EachBit(t *testing.T) {
	m := &memory{m: map[string][]byte{}}
	c := Checked(m)
	ctx := t.Context()
	for _, value := range []string{"", "v", "some value of more bytes"} {
		require.NoError(t, c.Batch(ctx, storage.SetOperation("k", []byte(value))))
		got, err := c.Get(ctx, "k")
		require.NoError(t, err)
		assert.Equal(t, value, string(got))
		stored := m.m["k"]
		for bit := range len(stored) * 8 {
			stored[bit/8] ^= 1 << (bit % 8)
			_, err := c.Get(ctx, "k")
			require.ErrorIs(t, err, ErrDamaged, "bit %d", bit)
			require.ErrorIs(t, c.Batch(ctx, storage.GetOperation("k")), ErrDamaged)
			stored[bit/8] ^= 1 << (bit % 8)
		}
		for n := range stored {
			m.m["k"] = stored[:n]
			_, err := c.Get(ctx, "k")
			require.ErrorIs(t, err, ErrDamaged, "%d bytes", n)
		}
		m.m["other"] = stored
		_, err = c.Get(ctx, "other")
		require.ErrorIs(t, err, ErrDamaged, "the value of another key")
	}
	v, err := c.Get(ctx, "none")
	require.NoError(t, err)
	assert.Nil(t, v)
	assert.Nil(t, Checked(nil))
}

func TestRemoveAll(t *testing.T) {
	m := &memory{m: map[string][]byte{"a/1": {1}, "a/2": nil, "ab": {2}, "b": {3}}}
	ok, err := RemoveAll(t.Context(), Checked(m), "a/")
	require.NoError(t, err)
	assert.True(t, ok)
	assert.Equal(t, map[string][]byte{"ab": {2}, "b": {3}}, m.m)
	ok, err = RemoveAll(t.Context(), struct{ storage.Client }{m}, "")
	require.NoError(t, err)
	assert.False(t, ok)
}
