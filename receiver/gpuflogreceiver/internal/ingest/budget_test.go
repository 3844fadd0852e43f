// SPDX-License-Identifier: Apache-2.0

package ingest

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
)

func sender(principal byte, host string) Client {
	c := Client{Host: netip.MustParsePrefix(host + "/32")}
	c.Principal[0] = principal
	return c
}

// taken reserves single units until the budget refuses, and returns their number.
func taken(b *Budget) (n int) {
	for b.Take(1, 0) {
		n++
	}
	return n
}

func TestBudget_Shares(t *testing.T) {
	for name, c := range map[string]struct {
		total   int64
		clients []Client
		want    []int
	}{
		"one host":                        {64, []Client{sender(1, "192.0.2.1")}, []int{32}},
		"hosts of one principal":          {64, []Client{sender(1, "192.0.2.1"), sender(1, "192.0.2.2"), sender(1, "192.0.2.3")}, []int{32, 16, 0}},
		"principals on one host":          {64, []Client{sender(1, "192.0.2.1"), sender(2, "192.0.2.1")}, []int{32, 32}},
		"a principal that has everything": {64, []Client{sender(1, "192.0.2.1"), sender(1, "192.0.2.2"), sender(2, "192.0.2.1")}, []int{32, 16, 16}},
		"hosts without a principal":       {64, []Client{sender(0, "192.0.2.1"), sender(0, "192.0.2.2"), sender(0, "192.0.2.3")}, []int{32, 32, 0}},
		"one for all":                     {1, []Client{sender(1, "192.0.2.1"), sender(2, "192.0.2.2")}, []int{1, 0}},
		"two":                             {2, []Client{sender(1, "192.0.2.1"), sender(2, "192.0.2.1")}, []int{1, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			b := NewBudget(c.total)
			var got []int
			left := c.total
			for _, client := range c.clients {
				n := taken(b.For(client))
				got = append(got, n)
				left -= int64(n)
			}
			assert.Equal(t, c.want, got)
			assert.Equal(t, left, b.Left())
			for i, client := range c.clients {
				b.For(client).Give(int64(got[i]))
			}
			assert.Equal(t, c.total, b.Left())
			assert.Empty(t, b.principals, "nobody is remembered who has nothing in use")
			assert.Empty(t, b.clients)
		})
	}
}

func TestBudget_LargeRequest(t *testing.T) {
	b := NewBudget(100).For(sender(1, "192.0.2.1"))
	assert.True(t, b.Take(40, 0))
	assert.True(t, b.Take(50, 40), "the client's only request may exceed its share")
	assert.False(t, b.Take(11, 90), "but not the total")
	assert.False(t, b.Take(5, 0), "a second request may not")
	assert.True(t, NewBudget(100).Take(100, 0))
	other := b.For(sender(2, "192.0.2.1"))
	assert.True(t, other.Take(10, 0))
	assert.Zero(t, b.Left())
}
