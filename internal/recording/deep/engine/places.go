// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"github.com/gpuflight/gpuflight/internal/gpuevent"
	"github.com/gpuflight/gpuflight/internal/recording/cubin"
)

// maxPlaces bounds the instructions whose place is remembered: some 15 MB. All are dropped when it
// is reached.
const maxPlaces = 1 << 16

// placeKey is an instruction of an image.
type placeKey struct {
	listingKey
	pc uint64
}

// place is where an instruction is. It is not resolved if its line is not known.
type place struct {
	at       cubin.Location
	resolved bool
}

// places tells where instructions are. A training step has the same kernels in each window, and
// their images may be a hundred megabytes. So an image is read for what the rows of a window need
// and not kept. What the rows needed is kept.
type places struct {
	resolver *cubin.Resolver
	known    map[placeKey]place
}

func newPlaces(image func(crc uint64) []byte) *places {
	return &places{resolver: cubin.NewResolver(cubin.Settings{Image: image}), known: map[placeKey]place{}}
}

// find returns the places of rows. Once hurry is closed no image is read any more: rows of those
// that are left have their function only, and late counts them.
func (p *places) find(rows []row, hurry <-chan struct{}) (found []place, late uint64) {
	found = make([]place, len(rows))
	var images []uint64
	byImage := map[uint64][]int{}
	for i := range rows {
		r := &rows[i]
		at, known := p.known[placeKey{listingKey{r.CRC, r.function()}, r.PC}]
		if known {
			found[i] = at
			continue
		}
		if byImage[r.CRC] == nil {
			images = append(images, r.CRC)
		}
		byImage[r.CRC] = append(byImage[r.CRC], i)
	}
	names := map[string]*gpuevent.KernelName{}
	for _, crc := range images {
		select {
		case <-hurry:
			for _, i := range byImage[crc] {
				function := rows[i].function()
				if names[function] == nil {
					names[function] = gpuevent.NewKernelName(function)
				}
				found[i].at.Function = names[function]
				late++
			}
		default:
			p.image(crc, rows, byImage[crc], found)
		}
	}
	return found, late
}

// image finds the places of those rows, which are of one image.
func (p *places) image(crc uint64, rows []row, which []int, found []place) {
	defer p.resolver.Forget(crc)
	for _, i := range which {
		key := placeKey{listingKey{crc, rows[i].function()}, rows[i].PC}
		at, known := p.known[key]
		if !known {
			var reason cubin.Reason
			at.at, reason = p.resolver.Resolve(crc, key.function, key.pc)
			at.resolved = reason == cubin.Resolved
			if len(p.known) >= maxPlaces {
				clear(p.known)
			}
			if reason != cubin.NoImage { // it may still come
				p.known[key] = at
			}
		}
		found[i] = at
	}
}
