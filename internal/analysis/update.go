// SPDX-License-Identifier: Apache-2.0

package analysis

import (
	"context"
	"slices"
	"strings"

	"github.com/gpuflight/gpuflight/internal/store"
)

// Update is what [KeepParts] added.
type Update struct {
	// Devices are the time of each device in the intervals that no earlier call had, by id.
	Devices []DeviceTime

	last bool
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
// analyses of the session read only what follows. With last, the session gets no more data, and the update
// has the rest of it too. A store that keeps no parts gives an empty update.
func KeepParts(ctx context.Context, r store.Reader, project, session string, last bool) (*Update, error) {
	u := &Update{last: last}
	src := FromReader(r, project, session)
	k, ok := src.(keeper)
	if !ok {
		return u, nil
	}
	if _, err := runWith(ctx, k, Options{}, u); err != nil {
		return nil, err
	}
	slices.SortFunc(u.Devices, func(a, b DeviceTime) int { return strings.Compare(a.ID, b.ID) })
	return u, nil
}

func (u *Update) device(id string) *DeviceTime {
	i := slices.IndexFunc(u.Devices, func(d DeviceTime) bool { return d.ID == id })
	if i < 0 {
		i = len(u.Devices)
		u.Devices = append(u.Devices, DeviceTime{ID: id})
	}
	return &u.Devices[i]
}

// add adds the tally of a part.
func (u *Update) add(id string, t *tally) {
	x := u.device(id)
	x.Parts = x.plus(&t.sums)
	x.Steps += int64(len(t.list.list))
	for i := range t.list.list {
		x.StepNs += t.list.list[i].WallNs
	}
}
