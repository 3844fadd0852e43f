// SPDX-License-Identifier: Apache-2.0

package gpustorageextension

import (
	"context"
	"errors"
	"fmt"

	"github.com/gpuflight/gpuflight/internal/store"
)

var (
	_ store.Tables    = (*backend)(nil)
	_ store.StackSums = (*backend)(nil)
)

// StacksFromSums implements [store.StackSums].
func (b *backend) StacksFromSums(ctx context.Context, project, session string) (bool, error) {
	s, ok := b.Store.(store.StackSums)
	if !ok {
		return false, nil
	}
	return s.StacksFromSums(ctx, project, session)
}

// WriteParquet implements [store.Tables].
func (b *backend) WriteParquet(ctx context.Context, q store.TableQuery, file string) error {
	t, err := b.tables()
	if err != nil {
		return err
	}
	return t.WriteParquet(ctx, q, file)
}

// SQL implements [store.Tables].
func (b *backend) SQL(ctx context.Context, q store.SQLQuery) (store.SQLAnswer, error) {
	t, err := b.tables()
	if err != nil {
		return store.SQLAnswer{}, err
	}
	return t.SQL(ctx, q)
}

func (b *backend) tables() (store.Tables, error) {
	t, ok := b.Store.(store.Tables)
	if !ok {
		return nil, fmt.Errorf("tables of a session: %w", errors.ErrUnsupported)
	}
	return t, nil
}
