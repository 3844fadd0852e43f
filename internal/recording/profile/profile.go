// SPDX-License-Identifier: Apache-2.0

// Package profile makes requests of OpenTelemetry's profiles signal and reads them. It is the only one that
// knows pdata's pprofile, which is in alpha and changes with the Collector's releases; all others pass
// [Profiles] on.
//
// A [Writer] collects samples: it keeps each string, function, location, stack and attribute once a request, and
// begins another request before one becomes too large. It knows nothing of what the samples are of.
//
// Seen in pprofile v0.158: on the wire attributes of resources have their keys and values in place, as in the
// other signals. In a file they are references into the dictionary, as the Collector's file exporter writes
// them: its reader finds no others.
package profile

import (
	"context"

	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.opentelemetry.io/collector/pdata/pprofile/pprofileotlp"
	"google.golang.org/grpc"
)

// Profiles are one request. The zero value is not one: see [Empty]. It belongs to one goroutine at a time.
type Profiles struct{ data pprofile.Profiles }

// Empty returns a request with nothing in it.
func Empty() Profiles { return Profiles{pprofile.NewProfiles()} }

// Of wraps what others have made.
func Of(data pprofile.Profiles) Profiles { return Profiles{data} }

// Data returns what p wraps.
func (p Profiles) Data() pprofile.Profiles { return p.data }

// Count is the number of profiles, which is what servers count too.
func (p Profiles) Count() int { return p.data.ProfileCount() }

// Size is the length of the encoded request in bytes.
func (p Profiles) Size() int { return (&pprofile.ProtoMarshaler{}).ProfilesSize(p.data) }

// Proto encodes the request for HTTP.
func (p Profiles) Proto() ([]byte, error) {
	return pprofileotlp.NewExportRequestFromProfiles(p.data).MarshalProto()
}

// JSON encodes the request as a line of a file, without the line's end.
func (p Profiles) JSON() ([]byte, error) {
	// The encoder moves the resource's attributes into the dictionary, after which Proto would be wrong: it gets a copy.
	own := pprofile.NewProfiles()
	p.data.CopyTo(own)
	return (&pprofile.JSONMarshaler{}).MarshalProfiles(own)
}

// FromJSON reads a line that JSON or the Collector's file exporter wrote.
func FromJSON(line []byte) (Profiles, error) {
	data, err := (&pprofile.JSONUnmarshaler{}).UnmarshalProfiles(line)
	return Profiles{data}, err
}

// FromProto reads what Proto wrote.
func FromProto(body []byte) (Profiles, error) {
	r := pprofileotlp.NewExportRequest()
	if err := r.UnmarshalProto(body); err != nil {
		return Profiles{}, err
	}
	return Profiles{r.Profiles()}, nil
}

// Export makes one attempt to send the request over gRPC. It returns how many profiles the server did not want,
// with its words. The error is gRPC's.
func (p Profiles) Export(ctx context.Context, conn *grpc.ClientConn) (rejected int64, message string, err error) {
	answer, err := pprofileotlp.NewGRPCClient(conn).Export(ctx, pprofileotlp.NewExportRequestFromProfiles(p.data))
	if err != nil {
		return 0, "", err
	}
	return answer.PartialSuccess().RejectedProfiles(), answer.PartialSuccess().ErrorMessage(), nil
}

// ReadAnswer reads the body of an answer over HTTP, as Export returns it.
func ReadAnswer(body []byte) (rejected int64, message string, err error) {
	r := pprofileotlp.NewExportResponse()
	if err := r.UnmarshalProto(body); err != nil {
		return 0, "", err
	}
	return r.PartialSuccess().RejectedProfiles(), r.PartialSuccess().ErrorMessage(), nil
}
