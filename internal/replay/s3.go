// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"
)

const (
	// stall is how long a read may bring nothing until the connection is taken for dead.
	stall = time.Minute
	// reopenings is how often in a row an object is opened again without a byte having come.
	reopenings = 5
)

// bucket is the objects of an S3 bucket whose keys start with a prefix.
type bucket struct {
	client *s3.Client
	name   string
	prefix string
	// pause is the first wait before an object is opened again; it doubles.
	pause time.Duration
}

// newS3 reads where S3 is and who asks from the environment and the files of AWS's own tools: AWS_REGION,
// AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_PROFILE, AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL and so on.
// At an endpoint of one's own the bucket stands in the path, since few have a host name per bucket.
func newS3(ctx context.Context, rest string) (Source, error) {
	name, prefix, _ := strings.Cut(rest, "/")
	if name == "" {
		return nil, errors.New("s3://: no bucket: write s3://BUCKET or s3://BUCKET/PREFIX")
	}
	cfg, err := config.LoadDefaultConfig(ctx)
	if err != nil {
		return nil, fmt.Errorf("settings of S3: %w", err)
	}
	client := s3.NewFromConfig(cfg, func(o *s3.Options) {
		if o.BaseEndpoint != nil {
			o.UsePathStyle = true
			if o.Region == "" {
				o.Region = "us-east-1" // which such servers take as well as any
			}
		}
		// Parts of objects are read, of which there are no checksums; the content has its own.
		o.ResponseChecksumValidation = aws.ResponseChecksumValidationWhenRequired
	})
	return &bucket{client: client, name: name, prefix: prefix, pause: time.Second}, nil
}

func (b *bucket) Objects(ctx context.Context, f func(Object) error) error {
	pages := s3.NewListObjectsV2Paginator(b.client, &s3.ListObjectsV2Input{Bucket: &b.name, Prefix: &b.prefix})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return fmt.Errorf("listing s3://%s/%s: %w", b.name, b.prefix, brief(err))
		}
		for _, o := range page.Contents {
			key := aws.ToString(o.Key)
			if key == "" || strings.HasSuffix(key, "/") {
				continue // what consoles make for a folder
			}
			err := f(Object{
				Name: "s3://" + b.name + "/" + key, key: key, SizeBytes: aws.ToInt64(o.Size), Named: key == b.prefix,
				Version: aws.ToString(o.ETag),
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// Open opens an object. Its reader opens it again where it was when the connection breaks, which it does
// when the endpoint of the telemetry is waited for so long that S3 is tired of it.
func (b *bucket) Open(ctx context.Context, o Object) (io.ReadCloser, error) {
	r := &objectReader{ctx: ctx, bucket: b, object: o}
	if err := r.open(); err != nil {
		return nil, brief(err)
	}
	return r, nil
}

type objectReader struct {
	ctx    context.Context
	bucket *bucket
	object Object

	body   io.ReadCloser
	cancel context.CancelFunc
	watch  *time.Timer
	at     int64
	failed int
}

func (r *objectReader) open() error {
	ctx, cancel := context.WithCancel(r.ctx)
	in := &s3.GetObjectInput{Bucket: &r.bucket.name, Key: &r.object.key}
	if r.object.Version != "" {
		in.IfMatch = &r.object.Version // another object in its place is not this one's rest
	}
	if r.at > 0 {
		in.Range = aws.String(fmt.Sprintf("bytes=%d-", r.at))
	}
	watch := time.AfterFunc(stall, cancel)
	out, err := r.bucket.client.GetObject(ctx, in)
	watch.Stop()
	if err != nil {
		cancel()
		return err
	}
	if r.at > 0 && !strings.HasPrefix(aws.ToString(out.ContentRange), fmt.Sprintf("bytes %d-", r.at)) {
		_ = out.Body.Close()
		cancel()
		return fmt.Errorf("the server does not give parts of objects (Content-Range %q)", aws.ToString(out.ContentRange))
	}
	r.body, r.cancel, r.watch = out.Body, cancel, watch
	return nil
}

func (r *objectReader) Read(p []byte) (int, error) {
	for {
		if r.body == nil {
			if err := r.again(); err != nil {
				return 0, err
			}
		}
		r.watch.Reset(stall)
		n, err := r.body.Read(p)
		r.watch.Stop()
		r.at += int64(n)
		if n > 0 {
			r.failed = 0
		}
		switch {
		case err == nil:
			return n, nil
		case errors.Is(err, io.EOF) && r.at >= r.object.SizeBytes:
			return n, io.EOF
		}
		// Cut off: also by an end that comes before the object's.
		_ = r.Close()
		if r.ctx.Err() != nil {
			return n, r.ctx.Err()
		}
		if n > 0 {
			return n, nil
		}
		if r.failed++; r.failed > reopenings {
			return 0, fmt.Errorf("at byte %d of %d: %w", r.at, r.object.SizeBytes, brief(err))
		}
	}
}

// again opens the object once more where it was, after a while.
func (r *objectReader) again() error {
	for {
		timer := time.NewTimer(r.bucket.pause << r.failed)
		select {
		case <-timer.C:
		case <-r.ctx.Done():
			timer.Stop()
			return r.ctx.Err()
		}
		err := r.open()
		var answer smithy.APIError
		switch {
		case err == nil:
			return nil
		case r.ctx.Err() != nil:
			return r.ctx.Err()
		}
		// An answer will not change, as that the object is another one by now; the client has tried
		// again already where it may.
		if r.failed++; errors.As(err, &answer) || r.failed > reopenings {
			return fmt.Errorf("at byte %d of %d: %w", r.at, r.object.SizeBytes, brief(err))
		}
	}
}

func (r *objectReader) Close() error {
	if r.body == nil {
		return nil
	}
	r.watch.Stop()
	r.cancel()
	err := r.body.Close()
	r.body = nil
	return err
}

// brief leaves of an error of S3 its code and words, without request ids and layers.
func brief(err error) error {
	var answer smithy.APIError
	if errors.As(err, &answer) {
		if answer.ErrorMessage() == "" {
			return errors.New(answer.ErrorCode())
		}
		return fmt.Errorf("%s: %s", answer.ErrorCode(), answer.ErrorMessage())
	}
	var op *smithy.OperationError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}
