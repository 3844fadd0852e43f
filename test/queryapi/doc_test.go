// SPDX-License-Identifier: Apache-2.0

// Package queryapi_test compares the answers of the extension gpu_query with its openapi.yaml.
package queryapi_test
