package main

import (
	"bytes"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"log"
	"maps"
	"os"
)

// job is what is signed, and how the published vectors name it.
type job struct {
	Topic     string `json:"topic"`
	Tenant    string `json:"tenant_id"`
	KeyID     string `json:"key_id"`
	CustomID  string `json:"custom_id"`
	ExpiresMs string `json:"expires_ms"`
	Value     []byte `json:"value_base64"`
}

// signedBytes are the label, five texts and the value, each behind its length in bytes.
func (j job) signedBytes() []byte {
	var signed []byte
	for _, field := range []string{"sluice-job-v1", j.Topic, j.Tenant, j.KeyID, j.CustomID, j.ExpiresMs, string(j.Value)} {
		signed = binary.BigEndian.AppendUint32(signed, uint32(len(field)))
		signed = append(signed, field...)
	}
	return signed
}

func (j job) headers(key ed25519.PrivateKey) map[string]string {
	return map[string]string{
		"sluice-tenant": j.Tenant, "sluice-key-id": j.KeyID, "sluice-custom-id": j.CustomID,
		"sluice-expires-ms": j.ExpiresMs,
		"sluice-signature":  base64.StdEncoding.EncodeToString(ed25519.Sign(key, j.signedBytes())),
	}
}

func privateKey(der []byte) ed25519.PrivateKey {
	return must(x509.ParsePKCS8PrivateKey(der)).(ed25519.PrivateKey)
}

// checkVectors makes every published vector anew.
func checkVectors(file string) {
	var published struct {
		Cases []struct {
			job
			Name    string
			Key     []byte `json:"private_key_pkcs8_base64"`
			Signed  []byte `json:"signed_bytes_base64"`
			Headers map[string]string
		}
	}
	check(json.Unmarshal(must(os.ReadFile(file)), &published))
	for _, c := range published.Cases {
		if !bytes.Equal(c.signedBytes(), c.Signed) {
			log.Fatalf("%s: other bytes are signed", c.Name)
		}
		if !maps.Equal(c.headers(privateKey(c.Key)), c.Headers) {
			log.Fatalf("%s: another signature", c.Name)
		}
	}
	fmt.Printf("%d vectors agree\n", len(published.Cases))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func must[T any](value T, err error) T {
	check(err)
	return value
}
