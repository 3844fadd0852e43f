// SPDX-License-Identifier: Apache-2.0
import { useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import type { Schemas } from "../api/client";
import { send } from "../api/client";
import { useGet } from "../api/hooks";
import { useMay } from "../views/Login";
import { Menu } from "./Menu";
import { Failure, ui } from "./parts";

/** BaselineMenu names the session, so that others are compared with it. */
export function BaselineMenu({ session }: { session: Schemas["Session"] }) {
  const client = useQueryClient();
  const admin = useMay("admin");
  const [name, setName] = useState(session.service ?? "");
  const [error, setError] = useState<unknown>(null);
  const all = useGet("/baselines", {}).data?.baselines ?? [];
  const own = all.filter((b) => b.session === session.id).map((b) => b.name);
  const other = all.find((b) => b.name === name && b.session !== session.id);
  const change = async (method: "PUT" | "DELETE", name: string) => {
    setError(null);
    try {
      const query = method === "PUT" ? { session: session.id } : {};
      await send(method, `/baselines/${encodeURIComponent(name)}`, undefined, query);
      await client.invalidateQueries({ queryKey: ["/baselines"] });
    } catch (e) {
      setError(e);
    }
  };
  return (
    <Menu label={own.length ? `Baseline ${own.join(", ")}` : "Baseline"}>
      {own.map((b) => (
        <div key={b} className={ui.row}>
          <strong>{b}</strong>
          <span className={ui.spacer} />
          <button type="button" className={ui.button} disabled={!admin} onClick={() => change("DELETE", b)}>
            Remove {b}
          </button>
        </div>
      ))}
      <form
        className={ui.row}
        onSubmit={(e) => {
          e.preventDefault();
          change("PUT", name);
        }}
      >
        <input
          className={ui.input}
          aria-label="Name of the baseline"
          required
          maxLength={100}
          value={name}
          onChange={(e) => setName(e.target.value)}
        />
        <button type="submit" className={ui.button} disabled={!admin || own.includes(name)}>
          Make baseline
        </button>
      </form>
      {other && <small>The name moves here from session {other.session.slice(0, 8)}.</small>}
      {error !== null && <Failure error={error} />}
      <small>
        Retention keeps a baseline. The Collector compares each later session of the application with the latest one.
      </small>
    </Menu>
  );
}
