// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"time"

	"github.com/gpuflight/gpuflight/cupti"
)

// FromCollector returns a collector as a Source.
func FromCollector(c *cupti.Collector) Source { return collector{c} }

type collector struct{ *cupti.Collector }

// Take returns a nil Records without a batch. A nil *cupti.Batch in the interface would not be nil.
func (c collector) Take(wait time.Duration) (Records, error) {
	b, err := c.Collector.Take(wait)
	if b == nil {
		return nil, err
	}
	return b, err
}
