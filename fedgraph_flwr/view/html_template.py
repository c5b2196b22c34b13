"""Template and style of the page; Python, as Flower's bundle drops other files."""

# ruff: noqa: E501  lines of HTML and CSS

STYLE = """
:root{color-scheme:light dark;--ink:#1b1f24;--dim:#59626c;--paper:#fff;--card:#f6f7f9;
--rule:#d5dae0;--link:#0b57a4;--bad:#a3271b;--good:#1b6b3a}
@media (prefers-color-scheme:dark){:root{--ink:#e8ebef;--dim:#a3adb8;--paper:#14171b;
--card:#1d2126;--rule:#3a424c;--link:#7cb8f2;--bad:#ff9284;--good:#7fd6a0}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:84rem;padding:1rem;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,sans-serif;overflow-wrap:anywhere}
h1{font-size:1.5rem;line-height:1.25;margin:.5rem 0}h2{font-size:1.3rem;line-height:1.3;margin:0}
#together{margin-bottom:1.5rem}h3{font-size:1.05rem;margin:1.4rem 0 .4rem}
a{color:var(--link)}a:focus-visible,summary:focus-visible,[tabindex]:focus-visible{
outline:3px solid var(--link);outline-offset:2px}
.skip{position:absolute;left:-99rem}.skip:focus{position:static}
nav ul{display:flex;flex-wrap:wrap;gap:.2rem 1rem;list-style:none;padding:0;margin:.4rem 0}
nav a{display:inline-block;padding:.3rem 0}
.runs{display:grid;gap:1rem;grid-template-columns:repeat(auto-fit,minmax(min(100%,26rem),1fr))}
article{background:var(--card);border:1px solid var(--rule);border-radius:.5rem;padding:1rem;
min-width:0}
.only article>.parts{display:grid;gap:0 2rem;
grid-template-columns:repeat(auto-fit,minmax(min(100%,26rem),1fr))}
.only article>.parts>section{min-width:0}
.value{font-size:2.2rem;font-weight:650;line-height:1.1;margin:.6rem 0 .1rem}
.dim{color:var(--dim);margin:.1rem 0}.bad{color:var(--bad)}.good{color:var(--good)}
.status{display:inline-block;border:1px solid;border-radius:1rem;padding:0 .6rem;font-size:.9rem}
dl.facts{display:grid;grid-template-columns:repeat(auto-fill,minmax(7rem,1fr));gap:.4rem;
margin:.8rem 0}
dl.facts div{border-top:2px solid var(--rule)}dt{color:var(--dim);font-size:.85rem}
dd{margin:0;font-weight:600}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:.9rem;width:100%}
th,td{text-align:left;padding:.25rem .5rem;border-bottom:1px solid var(--rule);vertical-align:top;
overflow-wrap:break-word}td:last-child:not(.n){min-width:11rem}td.n{font-variant-numeric:tabular-nums;white-space:nowrap}
caption{text-align:left;color:var(--dim);font-size:.85rem}
.wide{min-width:9rem}pre{white-space:pre-wrap;background:var(--paper);border:1px solid var(--rule);
border-radius:.3rem;padding:.6rem;margin:.4rem 0;font-size:.85rem}
summary{cursor:pointer;padding:.35rem 0}
svg{display:block;width:100%;max-width:52rem;height:auto;background:#fff}
@media print{:root{color-scheme:light;--ink:#000;--dim:#444;--paper:#fff;--card:#fff;--rule:#bbb;
--link:#000;--bad:#a3271b;--good:#1b6b3a}
body{max-width:none;padding:0;font-size:10pt}nav,.skip{display:none}.runs{display:block}
article{border:0;padding:0;break-after:page}article:last-child{break-after:auto}
section,tr,svg{break-inside:avoid}.scroll{overflow:visible}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
"""

PAGE = """
{%- macro table(name, headings, rows, numbers=[]) %}
<div class="scroll" tabindex="0" role="region" aria-label="{{ name|plain }}"><table>
<caption>{{ name|plain }}</caption>
<thead><tr>{% for h in headings %}<th scope="col">{{ h|plain }}</th>{% endfor %}</tr></thead>
<tbody>{% for row in rows %}<tr>{% for cell in row %}
{%- if loop.index0 in numbers %}<td class="n">{% else %}<td>{% endif %}{{ cell|plain }}</td>
{%- endfor %}</tr>
{% endfor %}</tbody></table></div>
{%- endmacro -%}
<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{{ title|plain }}</title><style>{{ style }}</style></head>
<body><a class="skip" href="#main">To the runs</a>
<header><h1>{{ title|plain }}</h1>
<nav aria-label="sections"><ul>
{%- if together %}<li><a href="#together">side by side</a></li>{% endif %}
{%- for r in runs %}<li><a href="#{{ r.id }}">
{%- if runs|length > 1 %}run {{ loop.index }}: {{ r.title|plain }}{% else %}result{% endif %}</a></li>
{%- endfor %}
{%- if runs|length == 1 %}{% for part in
["clients", "privacy", "failures", "replay"] %}
<li><a href="#run1-{{ part }}">{{ part }}</a></li>{% endfor %}{% endif %}
</ul></nav></header>
<main id="main" {% if runs|length == 1 %}class="only"{% endif %}>
{%- if together %}
<section id="together"><h2>Side by side</h2>
<p>Differences between single runs say little. Intervals over seeds: fedgraph compare.</p>
<div class="scroll" tabindex="0" role="region" aria-label="runs"><table>
<thead><tr><th scope="col">run</th>{% for h in
["status", "score", "read by", "clients", "rounds", "MB up", "MB down", "seconds"] %}
<th scope="col">{{ h }}</th>{% endfor %}</tr></thead>
<tbody>{% for row in together.rows %}<tr>
<th scope="row" class="wide"><a href="#{{ row.id }}">{{ loop.index }}: {{ row.title|plain }}</a></th>
{%- for cell in row.cells %}<td>{{ cell|plain }}</td>{% endfor %}</tr>{% endfor %}</tbody></table></div>
{%- for c in together.charts %}<h3>{{ c.name|plain }}</h3>{{ c.chart }}{% endfor %}
</section>{% endif %}
<div class="runs">
{%- for r in runs %}
<article id="{{ r.id }}" aria-labelledby="{{ r.id }}-title">
<h2 id="{{ r.id }}-title">{% if runs|length > 1 %}Run {{ loop.index }}: {% endif %}{{ r.title|plain }}</h2>
<p class="status {{ "good" if r.status == "completed" else "bad" }}">{{ r.status|plain }}</p>
{%- if r.status == "unfinished" %}<p>This run goes on, or was killed. It is shown as far as it came.</p>{% endif %}
{%- if r.status != "completed" %}<p>To go on after a stop, start it again with resume set to its results folder.</p>{% endif %}
{%- for words in (r.error, r.outweighing) if words %}<p class="bad">{{ words|plain }}</p>{% endfor %}
{%- if r.headline %}<p class="value">{{ r.headline.value }}</p>
<p>{{ r.headline.what|plain }}</p><p class="dim">{{ r.headline.protocol|plain }}</p>
<p class="dim">{{ r.headline.spread }}</p>
{%- else %}<p class="dim">This run has no score.</p>{% endif %}
<dl class="facts">{% for name, value in r.facts %}<div><dt>{{ name }}</dt><dd>{{ value|plain }}</dd></div>
{%- endfor %}</dl>
<div class="parts">
{%- if r.charts.get("scores", "") %}<section><h3>Scores over rounds</h3>{{ r.charts.get("scores", "") }}
<p class="dim">Models measured: {{ r.point|plain }}.</p>
</section>{% endif %}
{%- if r.charts.get("clusters", "") %}<section><h3>Clusters over rounds</h3>{{ r.charts.get("clusters", "") }}
{%- if r.many %}<p class="dim">Of many clients, {{ r.most_bars }} are drawn: the first by their last cluster.</p>{% endif %}
{%- if r.ari is not none %}<p>Agreement with the planted groups: adjusted Rand index
 {{ "%.2f"|format(r.ari) }}.</p>{% endif %}</section>{% endif %}
{%- if not r.is_alone %}<section><h3>Against training alone</h3>
{%- if r.gain %}<p>{{ r.gain.words|plain }}</p>{{ r.charts.get("gain", "") }}
<p class="dim">Rule {{ r.gain.rule|plain }}, same split and seed: {{ r.gain.partner|plain }}.
 One seed; for intervals see fedgraph compare.</p>
{%- else %}<p class="dim">No completed run of method local with the same data, split and seed is in
 this report.</p>{% endif %}</section>{% endif %}
<section id="{{ r.id }}-clients"><h3>Results</h3>
{{ table("by rule", ["rule", "mean", "std", "lowest", "highest", "protocol"], r.rules, range(1, 5)) }}
{%- for line in r.class_lines %}<p>{{ line|plain }}</p>{% endfor %}
{%- if r.confusion %}<details><summary>Test items called rightly or not</summary>
{{ table("counts of test items, the first " ~ r.more_rows ~ " rows at most",
r.confusion_headings, r.confusion, range(2, 7)) }}</details>{% endif %}
{%- if r.clients %}<details><summary>Each client</summary>
{{ table("clients, the first " ~ r.more_rows ~ " at most",
["client", "site", "examples"] + r.rules|map("first")|list, r.clients, [0,2]) }}</details>{% endif %}</section>
<section id="{{ r.id }}-privacy"><h3>Privacy</h3>
{%- if r.privacy %}<p>{{ r.privacy.says|plain }}</p><details><summary>What each client spent</summary>
{{ table("spent by client", ["client", "spent"], r.privacy.per_client.items()|list) }}</details>
{%- else %}<p>{% if r.status == "unfinished" %}Not known yet.{% else %}No noise was added: nothing is
 protected beyond what stays at a site.{% endif %}</p>{% endif %}</section>
<section id="{{ r.id }}-failures"><h3>Failures</h3>
{%- if r.failures %}
<p>{{ r.num_failures }} in all{% if r.num_failures > r.more_rows %}, the first {{ r.more_rows }}{% endif %}.</p>
<div class="scroll" tabindex="0" role="region" aria-label="failures"><table>
<thead><tr><th scope="col">round</th><th scope="col">client</th><th scope="col">site</th>
<th scope="col">reason</th></tr></thead><tbody>
{%- for f in r.failures %}<tr><td class="n">{{ f.round|plain }}</td><td class="n">{{ f.client|plain }}</td>
<td>{{ f.get("site", "")|plain }}</td><td class="wide">{{ f.reason|plain }}</td></tr>{% endfor %}</tbody></table></div>
{%- else %}<p>{% if r.status == "unfinished" %}Not known yet.{% else %}None.{% endif %}</p>{% endif %}
{%- for f in r.fresh_starts %}<p>Client {{ f.client|plain }} began anew in round {{ f.round|plain }}.</p>{% endfor %}
{%- if r.sites %}<p>Sites:
{%- for name, clients in r.sites.items() %} {{ name|plain }} ({{ clients|join(", ") }}){{ "," if not loop.last }}
{%- endfor %}.</p>{% endif %}</section>
<section id="{{ r.id }}-replay"><h3>Repeat this run</h3><pre>{{ r.replay }}</pre>
<p class="dim">With the same code, data, versions and kind of processor it gives the same weights, unless the run was
 stopped or lost a client, or a site's secret drew noise.</p>
<details><summary>Code, data and versions</summary>{{ table("origin", ["what", "value"], r.origin) }}</details>
<details><summary>Configuration</summary>{{ table("resolved configuration", ["key", "value"], r.config) }}
</details></section>
</div><p class="dim">{{ r.name|plain }}</p></article>
{%- endfor %}</div></main>
<footer class="dim">Made {{ made }} from results folders; this page loads nothing.</footer>
</body></html>
"""
