// SPDX-License-Identifier: Apache-2.0

package analysis

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/gpuflight/gpuflight/internal/store"
)

// Update is what [KeepParts] added.
type Update struct {
	// Devices are the time of each device that no earlier call had, by id. Rows that arrived late can make
	// a time negative.
	Devices []DeviceTime
	// Missing says that the session lacks work, see Result.Missing. The times are then not those of the
	// program.
	Missing bool

	last bool
	rest []DeviceTime // of what follows the parts
}

// DeviceTime is time of a device, and the steps that ended in it.
type DeviceTime struct {
	ID string
	Parts
	Steps, StepNs int64
}

// UpdateOps is the number of new operations for which [KeepParts] pays: its cost besides these is up to a
// second for the longest sessions.
const UpdateOps = 4 * partOps

// KeepParts analyses the parts of a session that the store does not keep yet, and keeps them. So later
// analyses of the session read only what follows. With last, the session pauses or has ended, and the update
// has the rest of it too. If the session goes on, later updates subtract this rest. In a store that keeps no
// parts, the last update has the whole session, as far as it can be read in 20 s, and the others are empty.
func KeepParts(ctx context.Context, r store.Reader, project, session string, last bool) (*Update, error) {
	src := FromReader(r, project, session)
	if k, ok := src.(keeper); ok {
		return keepParts(ctx, k, last)
	}
	u := &Update{last: last}
	if !last {
		return u, nil
	}
	err := u.run(ctx, src, Options{Deadline: time.Now().Add(maxUpdateTime)})
	u.Devices = u.rest
	return u, err
}

// maxUpdateTime bounds the reading of a session for its last update, as the API does for an answer.
const maxUpdateTime = 20 * time.Second

func (u *Update) run(ctx context.Context, src Source, o Options) error {
	r, err := runWith(ctx, src, o, u)
	if err == nil {
		u.Missing = r.Missing != nil
	}
	return err
}

// restName is the kept value with the rest that the last update had.
const restName = "rest"

func keepParts(ctx context.Context, k keeper, last bool) (*Update, error) {
	u := &Update{last: last}
	b, err := k.value(ctx, restName)
	if err != nil {
		return nil, err
	}
	if err := u.run(ctx, k, Options{}); err != nil {
		return nil, err
	}
	if !last && len(u.Devices) == 0 {
		return u, nil // a part holds all of the rest, if there is one
	}
	if c := openKept(b); c != nil {
		var had []DeviceTime
		if c.times(&had); c.in.OK() {
			for i := range had {
				zero := Parts{}
				u.add(had[i].ID, zero.minus(&had[i].Parts), -had[i].Steps, -had[i].StepNs)
			}
		}
	}
	for i := range u.rest {
		u.add(u.rest[i].ID, u.rest[i].Parts, u.rest[i].Steps, u.rest[i].StepNs)
	}
	slices.SortFunc(u.Devices, func(a, b DeviceTime) int { return strings.Compare(a.ID, b.ID) })
	var rest []byte
	if len(u.rest) > 0 {
		c := newKept()
		c.times(&u.rest)
		rest = c.closed()
	}
	return u, k.keep(ctx, restName, rest)
}

func (c *codec) times(list *[]DeviceTime) {
	elements(c, list, func(d *DeviceTime) {
		c.text(&d.ID)
		c.parts(&d.Parts)
		c.ints(&d.Steps, &d.StepNs)
	})
}

func (u *Update) device(id string) *DeviceTime {
	i := slices.IndexFunc(u.Devices, func(d DeviceTime) bool { return d.ID == id })
	if i < 0 {
		i = len(u.Devices)
		u.Devices = append(u.Devices, DeviceTime{ID: id})
	}
	return &u.Devices[i]
}

func (u *Update) add(id string, p Parts, steps, stepNs int64) {
	x := u.device(id)
	x.Parts = x.plus(&p)
	x.Steps += steps
	x.StepNs += stepNs
}

// addTally adds the tally of a part.
func (u *Update) addTally(id string, t *tally) {
	d := t.time(id)
	u.add(id, d.Parts, d.Steps, d.StepNs)
}

func (t *tally) time(id string) DeviceTime {
	d := DeviceTime{ID: id, Parts: t.sums, Steps: int64(len(t.list.list))}
	for i := range t.list.list {
		d.StepNs += t.list.list[i].WallNs
	}
	return d
}
