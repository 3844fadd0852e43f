// SPDX-License-Identifier: Apache-2.0

package traceexport

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"time"

	"github.com/google/pprof/profile"
	"go.opentelemetry.io/collector/pdata/pcommon"

	otlp "github.com/gpuflight/gpuflight/internal/recording/profile"
	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/rows"
	"github.com/gpuflight/gpuflight/semconv"
)

// OTLPProfiles writes the samples of [Profile] as OpenTelemetry profiles, one for each type of values.
// Each line is the JSON of a request, as in the files of a recording. The resource is that of the
// session. A sample whose kernels one span launched has a link to it. The same data has the same ids
// of profiles.
func OTLPProfiles(ctx context.Context, r store.Reader, q Query, w io.Writer) error {
	b, err := buildProfile(ctx, r, q)
	if err != nil {
		return err
	}
	resource := pcommon.NewResource()
	rows.AppendAttrs(b.info.Resource, resource.Attributes())
	to := otlp.NewWriter(otlp.Settings{
		Resource: resource, SchemaURL: semconv.SchemaURL, ScopeName: semconv.ScopeName,
		ID: func(n uint64) (id [16]byte) {
			sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %d %d %d", b.info.Project, b.info.ID, b.p.TimeNanos, b.p.DurationNanos, n))
			copy(id[:], sum[:])
			return id
		},
	})
	for i, t := range b.p.SampleType {
		to.Begin(otlp.Kind{Samples: otlp.Type{Name: t.Type, Unit: t.Unit}, Start: time.Unix(0, b.p.TimeNanos), Length: time.Duration(b.p.DurationNanos)})
		for _, x := range b.p.Sample {
			if x.Value[i] != 0 {
				to.Add(b.otlp(x, i))
			}
		}
	}
	for _, p := range to.Take() {
		line, err := p.JSON()
		if err != nil {
			return err
		}
		if _, err := w.Write(append(line, '\n')); err != nil {
			return err
		}
	}
	return nil
}

// otlp converts one value of a sample.
func (b *profileBuilder) otlp(x *profile.Sample, value int) *otlp.Sample {
	one := &otlp.Sample{Value: uint64(x.Value[value]), Link: b.links[x], Stack: make([]otlp.Location, len(x.Location))}
	for i, l := range x.Location {
		line := l.Line[0]
		f := line.Function
		one.Stack[i].Lines = []otlp.Line{{Function: otlp.Function{Name: f.Name, Symbol: f.SystemName, File: f.Filename}, Line: line.Line}}
	}
	for _, reason := range x.Label["stall"] {
		one.Attributes = append(one.Attributes, otlp.Attribute{Key: semconv.CUDAStallReason, Str: reason})
	}
	return one
}
