// SPDX-License-Identifier: Apache-2.0

package ingest

import (
	"net/netip"
	"sync"
)

// Principal identifies the credentials of a request. It is zero if none are required.
type Principal [16]byte

// Client is the owner of an amount of a Budget.
type Client struct {
	Principal Principal
	// Host is the network prefix of the client, or invalid if it has none.
	Host netip.Prefix
}

// Budget bounds an amount, such as bytes or requests, that all clients use together. It also bounds
// each client, so that some is left for the others. One principal may use three quarters of the
// total, and one host of a principal half. The second bound lets several hosts share one token. A
// request may exceed its share if it is the only one of its principal or host. The largest body
// that fits into the total is therefore accepted. A Budget is safe for concurrent use.
type Budget struct {
	*pool
	client Client
}

// pool is the state that all clients of a Budget share.
type pool struct {
	total int64

	mu   sync.Mutex
	left int64
	// principals and clients count the amounts in use. They have no entries of zero.
	principals map[Principal]int64
	clients    map[Client]int64
}

// NewBudget returns a budget of a total amount, for a client without a principal and a host.
func NewBudget(total int64) *Budget {
	return &Budget{pool: &pool{total: total, left: total, principals: map[Principal]int64{}, clients: map[Client]int64{}}}
}

// For returns the same budget for a client.
func (b *Budget) For(c Client) *Budget { return &Budget{pool: b.pool, client: c} }

// Left returns the unused amount.
func (b *Budget) Left() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.left
}

// Take reserves n, or reserves nothing and returns false. have is the amount that the same request
// has already reserved.
func (b *Budget) Take(n, have int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n > b.left {
		return false
	}
	c := b.client
	if c.Principal != (Principal{}) {
		if used := b.principals[c.Principal]; used != have && used+n > b.total-b.total/4 {
			return false
		}
	}
	if used := b.clients[c]; used != have && used+n > b.total/2 {
		return false
	}
	b.left -= n
	change(b.principals, c.Principal, n)
	change(b.clients, c, n)
	return true
}

// Give returns n that Take has reserved.
func (b *Budget) Give(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left += n
	change(b.principals, b.client.Principal, -n)
	change(b.clients, b.client, -n)
}

func change[K comparable](used map[K]int64, k K, n int64) {
	if used[k] += n; used[k] == 0 {
		delete(used, k)
	}
}

// reserve reserves n more bytes for a body that holds have bytes. The error is a *Refusal.
func (b *Budget) reserve(n, have int64) error {
	if b.Take(n, have) {
		return nil
	}
	if n+have > b.total {
		return tooLarge("in memory", b.total)
	}
	return Busy("too many bytes of requests are in memory: retry later")
}
