// SPDX-License-Identifier: Apache-2.0

package store

import "context"

// Step is an instance of a scope that a program repeats, such as a training step.
type Step struct {
	Instance
	// BusyNs is how long a kernel ran from StartNs to EndNs (see Reader.Busy). The kernels need not be
	// those that the step launched.
	BusyNs int64
}

// Steps returns the instances of a path and how long the devices were busy in each.
func Steps(ctx context.Context, r Reader, q InstanceQuery) ([]Step, error) {
	instances, err := r.Instances(ctx, q)
	if err != nil || len(instances) == 0 {
		return nil, err
	}
	b := BusyQuery{Project: q.Project, Session: q.Session}
	for _, i := range instances {
		b.Intervals = append(b.Intervals, Interval{i.StartNs, i.EndNs})
	}
	busy, err := r.Busy(ctx, b)
	if err != nil {
		return nil, err
	}
	steps := make([]Step, len(instances))
	for i := range steps {
		steps[i] = Step{instances[i], busy[i]}
	}
	return steps, nil
}
