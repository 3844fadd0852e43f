// SPDX-License-Identifier: Apache-2.0

// Package profile writes and reads requests of OpenTelemetry's profiles signal. It is the only
// importer of pdata's pprofile, which is in alpha and changes with the Collector's releases. Other
// packages pass [Profiles] on.
//
// A [Writer] collects samples. It stores each string, function, location, stack and attribute once
// per request, and starts another request before one becomes too large. It does not depend on the
// meaning of the samples.
//
// Observed in pprofile v0.158: on the wire, attributes of resources have their keys and values in
// place, as in the other signals. In a file they are references into the dictionary, as the
// Collector's file exporter writes them. The Collector's file receiver reads only the references.
package profile

import (
	"context"

	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.opentelemetry.io/collector/pdata/pprofile/pprofileotlp"
	"google.golang.org/grpc"
)

// Profiles is one request. The zero value is invalid: see [Empty]. It is not safe for concurrent
// use.
type Profiles struct{ data pprofile.Profiles }

// Empty returns a request without profiles.
func Empty() Profiles { return Profiles{pprofile.NewProfiles()} }

// Of wraps pdata's profiles.
func Of(data pprofile.Profiles) Profiles { return Profiles{data} }

// Data returns the wrapped profiles.
func (p Profiles) Data() pprofile.Profiles { return p.data }

// Count returns the number of profiles, the unit in which servers count too.
func (p Profiles) Count() int { return p.data.ProfileCount() }

// Size returns the length of the encoded request in bytes.
func (p Profiles) Size() int { return (&pprofile.ProtoMarshaler{}).ProfilesSize(p.data) }

// Proto encodes the request for HTTP.
func (p Profiles) Proto() ([]byte, error) {
	return pprofileotlp.NewExportRequestFromProfiles(p.data).MarshalProto()
}

// JSON encodes the request as a line of a file, without the line break.
func (p Profiles) JSON() ([]byte, error) {
	// The encoder moves the resource's attributes into the dictionary, which would make Proto
	// wrong. It therefore gets a copy.
	own := pprofile.NewProfiles()
	p.data.CopyTo(own)
	return (&pprofile.JSONMarshaler{}).MarshalProfiles(own)
}

// FromJSON reads a line that JSON or the Collector's file exporter wrote.
func FromJSON(line []byte) (Profiles, error) {
	data, err := (&pprofile.JSONUnmarshaler{}).UnmarshalProfiles(line)
	return Profiles{data}, err
}

// FromProto decodes a request that Proto encoded.
func FromProto(body []byte) (Profiles, error) {
	r := pprofileotlp.NewExportRequest()
	if err := r.UnmarshalProto(body); err != nil {
		return Profiles{}, err
	}
	return Profiles{r.Profiles()}, nil
}

// Export makes one attempt to send the request over gRPC. It returns the number of profiles that
// the server rejected, with the server's message. The error is gRPC's.
func (p Profiles) Export(ctx context.Context, conn *grpc.ClientConn) (rejected int64, message string, err error) {
	answer, err := pprofileotlp.NewGRPCClient(conn).Export(ctx, pprofileotlp.NewExportRequestFromProfiles(p.data))
	if err != nil {
		return 0, "", err
	}
	return answer.PartialSuccess().RejectedProfiles(), answer.PartialSuccess().ErrorMessage(), nil
}

// ReadAnswer decodes the body of an HTTP response and returns the same values as Export.
func ReadAnswer(body []byte) (rejected int64, message string, err error) {
	r := pprofileotlp.NewExportResponse()
	if err := r.UnmarshalProto(body); err != nil {
		return 0, "", err
	}
	return r.PartialSuccess().RejectedProfiles(), r.PartialSuccess().ErrorMessage(), nil
}
