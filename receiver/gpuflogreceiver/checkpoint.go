// SPDX-License-Identifier: Apache-2.0

package gpuflogreceiver

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	"go.opentelemetry.io/collector/extension/xextension/storage"

	"github.com/gpuflight/gpuflight/internal/collector/storageclient"
	"github.com/gpuflight/gpuflight/internal/gpuflog"
	"github.com/gpuflight/gpuflight/internal/varint"
	"github.com/gpuflight/gpuflight/receiver/gpuflogreceiver/internal/fileset"
)

// A group's checkpoint has a snapshot and plans. The snapshot holds the read positions of the files
// and the decoder's state. A plan describes a later step: the bytes it read, the time, and which
// files had ended. A plan is stored before the data of its step is delivered. After a crash the
// plans are repeated from the snapshot. Data that was delivered before is then delivered again with
// the same ids in the same traces. Snapshots are taken about once a second and when there is
// nothing to read.

// checkpoints stores the checkpoints. Without a storage every call is a no-op.
type checkpoints struct {
	client storage.Client
	groups []string // keys of the groups that have a checkpoint
}

func newCheckpoints(c storage.Client) *checkpoints { return &checkpoints{client: c} }

const indexKey = "groups"

func storageKey(group, what string) string {
	h := fnv.New128a()
	h.Write([]byte(group))
	return "g/" + hex.EncodeToString(h.Sum(nil)) + "/" + what
}

func planKey(group string, n uint64) string {
	return storageKey(group, fmt.Sprintf("p/%d", n))
}

// open reads the list of groups.
func (c *checkpoints) open(ctx context.Context) error {
	if c.client == nil {
		return nil
	}
	b, err := c.client.Get(ctx, indexKey)
	if err != nil || b == nil {
		return err
	}
	if err := json.Unmarshal(b, &c.groups); err != nil {
		return fmt.Errorf("list of checkpoints: %w", err)
	}
	return nil
}

// saved is a group's checkpoint as it was stored.
type saved struct {
	files, state, dicts []byte
	plans               []plan
	// muted means that the group is skipped up to its current end (start_at: end).
	muted bool
	// next is the number of the next plan.
	next uint64
}

// load returns the checkpoint of a group, or nil.
func (c *checkpoints) load(ctx context.Context, group string) (*saved, error) {
	if c.client == nil {
		return nil, nil
	}
	snap, err := c.client.Get(ctx, storageKey(group, "s"))
	if err != nil || snap == nil {
		return nil, err
	}
	s := &saved{}
	d := decoder{varint.Reader{Rest: snap}}
	name := string(d.Sized())
	s.next = d.Uint()
	s.muted = d.Byte() != 0
	s.files, s.state = d.Sized(), d.Sized()
	if !d.OK() || len(d.Rest) != 0 || name != group {
		return nil, errDamaged
	}
	if s.dicts, err = c.client.Get(ctx, storageKey(group, "d")); err != nil {
		return nil, err
	}
	for ; ; s.next++ {
		b, err := c.client.Get(ctx, planKey(group, s.next))
		if err != nil {
			return nil, err
		}
		if b == nil {
			return s, nil
		}
		p, err := parsePlan(b)
		if err != nil {
			return nil, fmt.Errorf("plan %d: %w", s.next, err)
		}
		s.plans = append(s.plans, p)
	}
}

// clear removes a checkpoint without a usable snapshot. Its plans depend on the snapshot, and a
// later snapshot must not find them.
func (c *checkpoints) clear(ctx context.Context, group string) error {
	if c.client == nil {
		return nil
	}
	if done, err := storageclient.RemoveAll(ctx, c.client, storageKey(group, "")); done {
		return err
	}
	for n := uint64(0); ; n++ {
		b, err := c.client.Get(ctx, planKey(group, n))
		if err != nil || b == nil {
			return err
		}
		if err := c.client.Delete(ctx, planKey(group, n)); err != nil {
			return err
		}
	}
}

// savePlan stores the plan of steps before their data is delivered.
func (c *checkpoints) savePlan(ctx context.Context, group string, n uint64, p *plan) error {
	if c.client == nil {
		return nil
	}
	return c.client.Set(ctx, planKey(group, n), p.append(nil))
}

// saveSnapshot stores a snapshot that replaces the plans from first on. Its dictionaries are nil if
// they have not changed.
func (c *checkpoints) saveSnapshot(ctx context.Context, group string, first uint64, s *saved) error {
	if c.client == nil {
		return nil
	}
	b := varint.AppendBytes(nil, []byte(group))
	b = binary.AppendUvarint(b, s.next)
	muted := byte(0)
	if s.muted {
		muted = 1
	}
	b = varint.AppendBytes(varint.AppendBytes(append(b, muted), s.files), s.state)
	ops := []*storage.Operation{storage.SetOperation(storageKey(group, "s"), b)}
	if s.dicts != nil {
		ops = append(ops, storage.SetOperation(storageKey(group, "d"), s.dicts))
	}
	for n := first; n < s.next; n++ {
		ops = append(ops, storage.DeleteOperation(planKey(group, n)))
	}
	if !slices.Contains(c.groups, group) {
		list, err := json.Marshal(append(slices.Clone(c.groups), group))
		if err != nil {
			return err
		}
		ops = append(ops, storage.SetOperation(indexKey, list))
		if err := c.client.Batch(ctx, ops...); err != nil {
			return err
		}
		c.groups = append(c.groups, group)
		return nil
	}
	return c.client.Batch(ctx, ops...)
}

// drop removes a group's checkpoint. next is the number after its last plan, if known.
func (c *checkpoints) drop(ctx context.Context, group string, first, next uint64) error {
	if c.client == nil {
		return nil
	}
	ops := []*storage.Operation{
		storage.DeleteOperation(storageKey(group, "s")), storage.DeleteOperation(storageKey(group, "d")),
	}
	for n := first; n < next; n++ {
		ops = append(ops, storage.DeleteOperation(planKey(group, n)))
	}
	if i := slices.Index(c.groups, group); i >= 0 {
		c.groups = slices.Delete(c.groups, i, i+1)
		list, err := json.Marshal(c.groups)
		if err != nil {
			return err
		}
		ops = append(ops, storage.SetOperation(indexKey, list))
	}
	return c.client.Batch(ctx, ops...)
}

// plan is one or more steps that are delivered together.
type plan struct {
	steps []planStep
	// files is the state of the group's files after the steps.
	files []byte
}

// planStep holds the inputs of a step. The decoder's results depend on nothing else.
type planStep struct {
	segments []segment
	end      gpuflog.Step
	// open means that the step had not ended when the plan was stored. A later step of the plans
	// ends it.
	open bool
}

// segment is a segment of a channel.
type segment struct {
	channel gpuflog.Channel
	seg     fileset.Segment
}

var errDamaged = fmt.Errorf("checkpoint: %w", storageclient.ErrDamaged)

func (p *plan) append(b []byte) []byte {
	b = binary.AppendUvarint(b, uint64(len(p.steps)))
	for i := range p.steps {
		st := &p.steps[i]
		b = binary.AppendUvarint(b, uint64(len(st.segments)))
		for _, s := range st.segments {
			b = append(b, byte(s.channel))
			b = varint.AppendBytes(b, s.seg.Append(nil))
		}
		b = binary.AppendVarint(b, st.end.Now)
		b = binary.AppendVarint(b, int64(st.end.Quiet))
		flags := byte(0)
		for ch, at := range st.end.AtEnd {
			if at {
				flags |= 1 << ch
			}
		}
		if st.open {
			flags |= 1 << 6
		}
		if st.end.Gone {
			flags |= 1 << 7
		}
		b = append(b, flags)
	}
	return varint.AppendBytes(b, p.files)
}

func parsePlan(b []byte) (plan, error) {
	d := decoder{varint.Reader{Rest: b}}
	var p plan
	for n := d.Uint(); n > 0 && d.OK(); n-- {
		var st planStep
		for m := d.Uint(); m > 0 && d.OK(); m-- {
			ch := gpuflog.Channel(d.Byte())
			seg, rest, err := fileset.ParseSegment(d.Sized())
			if err != nil || len(rest) > 0 || ch >= gpuflog.NumChannels {
				return plan{}, errDamaged
			}
			st.segments = append(st.segments, segment{ch, seg})
		}
		st.end.Now = d.Int()
		st.end.Quiet = time.Duration(d.Int())
		flags := d.Byte()
		for ch := range st.end.AtEnd {
			st.end.AtEnd[ch] = flags&(1<<ch) != 0
		}
		st.open = flags&(1<<6) != 0
		st.end.Gone = flags&(1<<7) != 0
		p.steps = append(p.steps, st)
	}
	p.files = d.Sized()
	if !d.OK() || len(d.Rest) != 0 {
		return plan{}, errDamaged
	}
	return p, nil
}

// decoder reads stored state.
type decoder struct{ varint.Reader }

const damaged = "a value is out of range"
